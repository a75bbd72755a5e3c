"""Accuracy against the number of labels: `python -m bench.labels --task sst2 --data DIR --start M`.

Fine-tunes an encoder that was pre-trained on plain text on more and more labels, beside the same
encoder from scratch. What is trained on is drawn by each seed, and the best weights are chosen on
500 other training examples. `--choose` compares learning rates on those and asks nothing else; the
curve asks the held-out file once a run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev

import torch

import qkv
from bench.measure import machine
from qkv.config import load_recipe

RECIPES = Path(__file__).parent.parent / "recipes"
STEPS = {
    "sst2": {100: 200, 300: 250, 673: 300, 2000: 500, 6700: 1000, 66_000: 3000},
    "chnsenticorp": {100: 200, 300: 250, 900: 400, 3000: 800, 9000: 1500},
}
SEEDS = {6700: 2, 66_000: 1, 9000: 1}  # of few labels, many draws; 3 where nothing is said
ARMS = ("pre-trained", "from scratch")


def fine_tune(
    arguments: argparse.Namespace, arm: str, size: int, seed: int, lr: float
) -> dict[str, float]:
    """Accuracies on the validation examples and, unless rates are being chosen, on the test's."""
    task, data = arguments.task, arguments.data
    folder = arguments.out / f"{task}-{arm.replace(' ', '-')}"
    steps = STEPS[task].get(size, 3000)
    test = [] if arguments.choose else [str(next(data.glob("valid.tsv*")))]
    settings = [
        f"data.examples={data / 'train.tsv.gz'}",
        f"data.test_examples={json.dumps(test)}",
        f"data.n_examples={size}",
        "data.valid_size=500",
        f"train.seed={seed}",
        f"train.steps={steps}",
        f"train.warmup={steps // 10}",
        f"train.lr={lr}",
        f"train.valid_every={steps // 8}",
        "train.patience=0",
        "train.checkpoint_every=100000",
        "train.batch_tokens=2048",
        "train.tensorboard=false",
    ]
    if arm == "pre-trained":
        settings.append(f"train.start_from={arguments.start}")
    else:
        preset = json.loads((Path(arguments.start) / "config.json").read_text())["model"]
        sizes = ("d_model", "n_heads", "d_ff", "n_encoder_layers", "max_length")
        settings += [f"model.{name}={preset[name]}" for name in sizes]
        settings.append(f"tokenizer.path={Path(arguments.start) / 'tokenizer.json'}")
    recipe = load_recipe(RECIPES / f"{task}.toml", settings)
    run = qkv.train(recipe, folder / f"{size}-{seed}-{lr}")
    return {
        split: next(score.value for score in scores if score.name == "accuracy")
        for split, scores in run.scores.items()
    }


def choose(arguments: argparse.Namespace) -> None:
    """Validation accuracy of each learning rate."""
    for arm in arguments.arms:
        for lr in arguments.lr:
            found = [
                fine_tune(arguments, arm, arguments.sizes[0], seed, lr)["valid"] for seed in (0, 1)
            ]
            print(f"{arm}, lr {lr}: valid {mean(found):.1f} {found}", flush=True)


def curve(arguments: argparse.Namespace) -> None:
    """Test accuracy by size and seed, each as a line of JSON."""
    for size in arguments.sizes or STEPS[arguments.task]:
        for arm, lr in zip(arguments.arms, arguments.lr, strict=True):
            for seed in range(SEEDS.get(size, 3)):
                found = fine_tune(arguments, arm, size, seed, lr)
                record = {"task": arguments.task, "arm": arm, "size": size, "seed": seed, **found}
                print(json.dumps(record), flush=True)


def draw(lines: list[str], path: Path) -> None:
    """The curves that `curve` printed, with the spread over seeds."""
    from matplotlib.figure import Figure

    records = [json.loads(line) for line in lines if line.startswith("{")]
    tasks = sorted({record["task"] for record in records}, reverse=True)
    figure = Figure(figsize=(5.2 * len(tasks), 3.8), layout="constrained")
    for axis, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for arm in ARMS:
            points: dict[int, list[float]] = {}
            for record in records:
                if (record["task"], record["arm"]) == (task, arm):
                    points.setdefault(record["size"], []).append(record["test"])
            sizes = sorted(points)
            middle = [mean(points[size]) for size in sizes]
            spread = [stdev(points[size]) if len(points[size]) > 1 else 0.0 for size in sizes]
            axis.errorbar(sizes, middle, yerr=spread, marker="o", capsize=3, label=arm)
            for size in sizes:
                print(f"{task}, {size} labels, {arm}: {mean(points[size]):.1f} of {points[size]}")
        axis.set_xscale("log")
        axis.set_xlabel("labelled examples")
        axis.set_ylabel("accuracy, %")
        axis.set_title(task)
        axis.grid(alpha=0.3)
        axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=STEPS)
    parser.add_argument("--data", type=Path, help="the folder of train.tsv.gz")
    parser.add_argument("--start", help="the folder of the pre-trained encoder")
    parser.add_argument("--out", type=Path, default=Path("runs/labels"))
    parser.add_argument("--sizes", type=int, nargs="*")
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=ARMS)
    parser.add_argument("--lr", type=float, nargs="*", default=[2e-4, 5e-4], help="of each arm")
    parser.add_argument("--choose", action="store_true", help="compare learning rates on valid")
    parser.add_argument("--draw", type=Path, nargs="*", help="draw what curves printed to files")
    parser.add_argument("--picture", type=Path, default=Path("docs/figures/labels.png"))
    arguments = parser.parse_args()
    if arguments.draw:
        lines = [line for path in arguments.draw for line in path.read_text().splitlines()]
        return draw(lines, arguments.picture)
    print(machine(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
    return choose(arguments) if arguments.choose else curve(arguments)


if __name__ == "__main__":
    main()
