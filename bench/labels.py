"""Accuracy against the number of labels: `python -m bench.labels --task sst2 --data DIR --start M`.

Fine-tunes an encoder that was pre-trained on plain text on more and more labels, beside the same
encoder from scratch. What is trained on is drawn by each seed, and the best weights are chosen on
500 other training examples. `--choose` compares learning rates on those and scores nothing else;
the curve scores the held-out file once a run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from bench.measure import Session, data_file, parser, run, score, trained

STEPS = {
    "sst2": {100: 200, 300: 250, 673: 300, 2000: 500, 6700: 1000, 66_000: 3000},
    "chnsenticorp": {100: 200, 300: 250, 900: 400, 3000: 800, 9000: 1500},
}
SEEDS = {6700: 2, 66_000: 1, 9000: 1}  # 3 for all others: few labels need several draws
ARMS = ("pre-trained", "from scratch")


def fine_tune(session: Session, arm: str, size: int, seed: int, lr: float) -> dict[str, float]:
    """Return accuracies on validation and test examples; no test where rates are chosen."""
    options = session.options
    steps = STEPS[options.task].get(size, 3000)
    test = [] if options.choose else [str(data_file(options.data, "valid"))]
    settings = [
        f"data.examples={data_file(options.data, 'train')}",
        f"data.test_examples={json.dumps(test)}",
        f"data.n_examples={size}",
        "data.valid_size=500",
        f"train.device={session.device.type}",
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
        settings.append(f"train.start_from={options.start}")
    else:
        model = json.loads((options.start / "config.json").read_text())["model"]
        sizes = ("d_model", "n_heads", "d_ff", "n_encoder_layers", "max_length")
        settings += [f"model.{name}={model[name]}" for name in sizes]
        settings.append(f"tokenizer.path={options.start / 'tokenizer.json'}")
    folder = options.out / f"{options.task}-{arm.replace(' ', '-')}" / f"{size}-{seed}-{lr}"
    finished = trained(options.task, settings, folder)
    return {split: score(finished, split, "accuracy") for split in finished.scores}


def choose(session: Session) -> None:
    """Print the validation accuracy of each learning rate."""
    options = session.options
    for arm in options.arms:
        for lr in options.lr:
            scores = [
                fine_tune(session, arm, options.sizes[0], seed, lr)["valid"] for seed in (0, 1)
            ]
            print(f"{arm}, lr {lr}: valid {mean(scores):.1f} {scores}", flush=True)


def curve(session: Session) -> None:
    """Print the test accuracy of each run as a line of JSON, and record the means."""
    options = session.options
    for arm, lr in zip(options.arms, options.lr, strict=True):
        means = {}
        for size in options.sizes or STEPS[options.task]:
            scores = []
            for seed in range(SEEDS.get(size, 3)):
                accuracies = fine_tune(session, arm, size, seed, lr)
                scores.append(accuracies["test"])
                row = {"task": options.task, "arm": arm, "size": size, "seed": seed}
                print(json.dumps({**row, **accuracies}), flush=True)
            means[f"{size:,}"] = round(mean(scores), 1)
        session.record(f"quality.labels.{options.task}.{arm.replace(' ', '-')}", arm, means)


def draw(lines: list[str], path: Path) -> None:
    """Draw the curves that `curve` printed, with the spread over seeds."""
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


def body(session: Session) -> None:
    options = session.options
    if options.draw:
        lines = [line for path in options.draw for line in path.read_text().splitlines()]
        draw(lines, options.picture)
    elif options.choose:
        choose(session)
    else:
        curve(session)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser("bench.labels", __doc__)
    options.add_argument("--task", choices=STEPS)
    options.add_argument("--data", type=Path, help="the folder with train.… and valid.…")
    options.add_argument("--start", type=Path, help="the folder of the pre-trained encoder")
    options.add_argument("--out", type=Path, default=Path("runs/labels"))
    options.add_argument("--sizes", type=int, nargs="*")
    options.add_argument("--arms", nargs="*", choices=ARMS, default=ARMS)
    options.add_argument("--lr", type=float, nargs="*", default=[2e-4, 5e-4], help="of each arm")
    options.add_argument("--choose", action="store_true", help="compare learning rates on valid")
    options.add_argument("--draw", type=Path, nargs="*", help="draw what curves printed to files")
    options.add_argument("--picture", type=Path, default=Path("docs/figures/labels.png"))
    run(body, options, arguments)


if __name__ == "__main__":
    main()
