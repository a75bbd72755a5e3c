"""Fine-tuning beside transformers' Trainer: `python -m bench.finetune --task sst2 --data DIR`.

Both begin from the same weights (`minilm`), train on the same examples for as many epochs with as
many examples a step, validate equally often on the same part that is cut off the training file, and
keep the weights that were best there. Both models are then scored by qkv's own code. `--choose`
compares settings on the part that was cut off and never opens the test file; else that is asked
once a run. Runs may be spread over processes, and `--table` sums up what all of them printed.

python -m bench.finetune --task mrpc --data DIR --choose --set train.lr=2e-4 --peer-lr 1e-4
python -m bench.finetune --task mrpc --data DIR --seeds 0 1 2 > mrpc.jsonl
python -m bench.finetune --table mrpc.jsonl sst2.jsonl
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console

import qkv
from qkv.config import Recipe, load_recipe
from qkv.device import pick_device
from qkv.errors import UserError
from qkv.evaluation import Score
from qkv.run.job import Plan
from qkv.run.train import JOBS
from qkv.shelf import find_model

RECIPES = Path(__file__).parent.parent / "recipes"
TASKS = ("sst2", "mrpc", "snli", "wnut17", "xquad_en", "cmrc2018")
ARMS = ("ours", "peer")
# What stands in the table; a record holds the others too.
SHOWN = ("accuracy", "macro F1", "entity F1", "token accuracy", "exact match", "F1")
Record = dict[str, Any]


def recipe_of(options: argparse.Namespace, seed: int) -> Recipe:
    """The recipe of the task with these files; without the test file where settings are chosen."""
    test = [] if options.choose else [str(the_file(options.data, "valid"))]
    settings = [
        f"data.examples={the_file(options.data, 'train')}",
        f"data.test_examples={json.dumps(test)}",
        f"train.start_from={find_model(options.model)}",
        f"train.seed={seed}",
        "train.checkpoint_every=100000",
        "train.tensorboard=false",
    ]
    return load_recipe(RECIPES / f"minilm_{options.task}.toml", [*settings, *options.set])


def the_file(folder: Path, name: str) -> Path:
    found = sorted(folder.glob(f"{name}.*"))
    if len(found) != 1:
        raise UserError(f"{folder} holds {len(found)} files named {name}.…, but must hold one.")
    return found[0]


def run(options: argparse.Namespace, arm: str, seed: int) -> Record:
    """One run of one side; its model is kept, unless settings are being chosen."""
    recipe = recipe_of(options, seed)
    lr = options.peer_lr or recipe.train.lr if arm == "peer" else recipe.train.lr
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) if options.choose else options.out
        folder = out / f"{options.task}-{arm}-{lr}-{seed}"
        scores, seconds = (train_peer if arm == "peer" else train_ours)(recipe, folder, lr)
    found = {split: {one.name: one.value for one in each} for split, each in scores.items()}
    settings = {"lr": lr, "set": options.set} if options.set else {"lr": lr}
    return {
        "task": options.task,
        "arm": arm,
        "seed": seed,
        **settings,
        **found,
        "seconds": round(seconds, 1),
    }


def train_ours(recipe: Recipe, folder: Path, lr: float) -> tuple[dict[str, list[Score]], float]:
    """`qkv train`, and the seconds that it spent on steps and validations."""
    found = qkv.train(recipe, folder, anew=True, console=Console(quiet=True))
    return found.scores, found.progress.seconds


def train_peer(recipe: Recipe, folder: Path, lr: float) -> tuple[dict[str, list[Score]], float]:
    """The Trainer on the examples of our job, and the seconds of its steps and validations."""
    from bench.trainer import as_ours, fine_tune

    device = pick_device(recipe.train.device)
    job: Any = JOBS[recipe.task](Plan(recipe, folder, device, lambda remark: None))
    seconds = fine_tune(job, Path(recipe.train.start_from), lr, folder)
    best = as_ours(job, folder)
    parts = {"valid": job.splits.valid, "test": job.splits.test}
    return {name: job.measure(best, part) for name, part in parts.items() if part}, seconds


def table(records: Sequence[Record]) -> str:
    """Mean and spread over seeds of each score and side, and what ours has more than the peer."""
    split = "test" if all("test" in one for one in records) else "valid"
    lines = [f"| task | {split} | ours | peer | ours − peer |", "|---|---|---|---|---|"]
    for task in dict.fromkeys(one["task"] for one in records):
        of_task = [one for one in records if one["task"] == task]
        for name in (name for name in SHOWN if name in of_task[0][split]):
            by_arm = {
                arm: {one["seed"]: one[split][name] for one in of_task if one["arm"] == arm}
                for arm in ARMS
            }
            cells = [spread(by_arm[arm].values()) for arm in ARMS]
            both = by_arm["ours"].keys() & by_arm["peer"].keys()
            more = spread([by_arm["ours"][seed] - by_arm["peer"][seed] for seed in both], "+")
            lines.append(f"| {task} | {name} | {' | '.join(cells)} | {more} |")
        times = [spread([one["seconds"] for one in of_task if one["arm"] == arm]) for arm in ARMS]
        lines.append(f"| {task} | seconds of training | {' | '.join(times)} | |")
    return "\n".join(lines)


def spread(values: Iterable[float], sign: str = "") -> str:
    """Mean ± standard deviation."""
    found = list(values)
    if not found:
        return "–"
    deviation = f" ± {stdev(found):.1f}" if len(found) > 1 else ""
    return f"{mean(found):{sign}.1f}{deviation}"


def check_once(records: Sequence[Record]) -> None:
    """A table of several settings would mix them."""
    runs = [(one["task"], one["arm"], one["seed"]) for one in records]
    for one in runs:
        if runs.count(one) > 1:
            raise UserError(
                f"The runs of task {one[0]}, {one[1]}, seed {one[2]} are {runs.count(one)}; give "
                f"a table those of one setting only."
            )


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS)
    parser.add_argument("--data", type=Path, help="the folder with train.… and valid.…")
    parser.add_argument("--model", default="minilm", help="a Hugging Face folder, or its name")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--choose", action="store_true", help="never look at the test file")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--peer-lr", type=float, help="instead of the recipe's")
    parser.add_argument("--out", type=Path, default=Path("runs/finetune"))
    parser.add_argument("--table", type=Path, nargs="+", help="sum up what runs printed to files")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    try:
        if options.table:
            lines = [line for path in options.table for line in path.read_text().splitlines()]
            records = [json.loads(line) for line in lines if line.startswith("{")]
        else:
            records = []
            for seed in options.seeds:
                for arm in options.arms:
                    records.append(run(options, arm, seed))
                    print(json.dumps(records[-1]), flush=True)
        check_once(records)
        print(table(records))
    except UserError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
