"""Fine-tuning beside transformers' Trainer: `python -m bench.finetune --task sst2 --data DIR`.

Both begin from the same weights (`minilm`), train on the same examples for as many epochs with as
many examples a step, validate equally often on the same part that is cut off the training file, and
keep the weights that were best there. Both models are then scored by qkv's own code. `--choose`
compares settings on the part that was cut off and never opens the test file; otherwise that is
scored once a run. Runs may be spread over processes; `--table` sums up what all of them printed.

python -m bench.finetune --task mrpc --data DIR --choose --set train.lr=2e-4 --peer-lr 1e-4
python -m bench.finetune --task mrpc --data DIR --seeds 0 1 2 > mrpc.jsonl
python -m bench.finetune --table mrpc.jsonl sst2.jsonl --save
"""

from __future__ import annotations

import json
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import qkv
from bench.measure import RECIPES, Session, data_file, parser, product_job, run, spread
from bench.records import Figure
from qkv.config import Recipe, load_recipe
from qkv.errors import UserError
from qkv.evaluation import Score, evaluate
from qkv.shelf import find_model

TASKS = ("sst2", "mrpc", "snli", "wnut17", "xquad_en", "cmrc2018")
ARMS = ("ours", "peer")
# What a table shows; the printed lines hold all other scores too.
SHOWN = ("accuracy", "macro F1", "entity F1", "token accuracy", "exact match", "F1")
Result = dict[str, Any]
Scores = dict[str, list[Score]]


def recipe_of(options: Namespace, seed: int) -> Recipe:
    """Return the task's recipe with these files; no test file where settings are chosen."""
    test = [] if options.choose else [str(data_file(options.data, "valid"))]
    settings = [
        f"data.examples={data_file(options.data, 'train')}",
        f"data.test_examples={json.dumps(test)}",
        f"train.start_from={find_model(options.model)}",
        f"train.device={options.device}",
        f"train.seed={seed}",
        "train.checkpoint_every=100000",
        "train.tensorboard=false",
    ]
    return load_recipe(RECIPES / f"minilm_{options.task}.toml", [*settings, *options.set])


def one_run(options: Namespace, arm: str, seed: int) -> Result:
    """Train one side; its model is kept, unless settings are being chosen."""
    recipe = recipe_of(options, seed)
    lr = options.peer_lr or recipe.train.lr if arm == "peer" else recipe.train.lr
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) if options.choose else options.out
        folder = out / f"{options.task}-{arm}-{lr}-{seed}"
        scores, seconds = (train_peer if arm == "peer" else train_ours)(recipe, folder, lr)
    return {
        "task": options.task,
        "arm": arm,
        "seed": seed,
        "lr": lr,
        **({"set": options.set} if options.set else {}),
        **{split: {s.name: s.value for s in values} for split, values in scores.items()},
        "seconds": round(seconds, 1),
    }


def train_ours(recipe: Recipe, folder: Path, lr: float) -> tuple[Scores, float]:
    """Run `qkv train`; return its scores and the seconds of its steps and validations."""
    finished = qkv.train(recipe, folder, replace=True, console=Console(quiet=True))
    return finished.scores, finished.state.seconds


def train_peer(recipe: Recipe, folder: Path, lr: float) -> tuple[Scores, float]:
    """Run the Trainer on the examples of our job; return the same."""
    from bench.trainer import as_ours, fine_tune

    job: Any = product_job(recipe, folder)
    seconds = fine_tune(job, Path(recipe.train.start_from), lr, folder)
    best = as_ours(job, folder)
    splits = {"valid": job.splits.valid, "test": job.splits.test}
    return {name: evaluate(best, split).scores for name, split in splits.items() if split}, seconds


def record(session: Session, results: Sequence[Result]) -> None:
    """Record mean and spread over seeds of each score and side, and their difference."""
    split = "test" if all("test" in result for result in results) else "valid"
    for task in dict.fromkeys(result["task"] for result in results):
        runs = [result for result in results if result["task"] == task]
        for name in (name for name in SHOWN if name in runs[0][split]):
            ours, peer = (
                {run["seed"]: run[split][name] for run in runs if run["arm"] == arm} for arm in ARMS
            )
            both = [ours[seed] - peer[seed] for seed in ours.keys() & peer.keys()]
            columns = {"ours": ours.values(), "Trainer": peer.values(), "ours − Trainer": both}
            figures = {side: rounded([*values]) for side, values in columns.items() if values}
            key = f"quality.finetune.{task}.{name.replace(' ', '-')}"
            session.record(key, f"{task}, {name} ({split})", figures)
        times = {arm: [run["seconds"] for run in runs if run["arm"] == arm] for arm in ARMS}
        seconds = {arm: rounded(values) for arm, values in times.items() if values}
        session.record(f"quality.finetune-seconds.{task}", task, seconds, "s")


def rounded(values: Sequence[float]) -> Figure:
    """Return mean and standard deviation as they are shown."""
    figure = spread(values)
    return round(figure, 1) if isinstance(figure, float) else [round(x, 2) for x in figure]


def check_once(results: Sequence[Result]) -> None:
    """Refuse several settings in one table, which would mix them."""
    runs = [(result["task"], result["arm"], result["seed"]) for result in results]
    for task, arm, seed in runs:
        count = runs.count((task, arm, seed))
        if count > 1:
            raise UserError(
                f"There are {count} runs of task {task}, {arm}, seed {seed}; name the files of one "
                f"setting only."
            )


def body(session: Session) -> None:
    """Run both sides for each seed, or read what runs printed, and record the means."""
    options = session.options
    if options.table:
        lines = [line for path in options.table for line in path.read_text().splitlines()]
        results = [json.loads(line) for line in lines if line.startswith("{")]
    else:
        results = []
        for seed in options.seeds:
            for arm in options.arms:
                results.append(one_run(options, arm, seed))
                print(json.dumps(results[-1]), flush=True)
    check_once(results)
    record(session, results)


def main(arguments: Sequence[str] | None = None) -> Session:
    options = parser("bench.finetune", __doc__)
    options.add_argument("--task", choices=TASKS)
    options.add_argument("--data", type=Path, help="the folder with train.… and valid.…")
    options.add_argument("--model", default="minilm", help="a Hugging Face folder, or its name")
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    options.add_argument("--choose", action="store_true", help="never look at the test file")
    options.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    options.add_argument("--peer-lr", type=float, help="instead of the recipe's")
    options.add_argument("--out", type=Path, default=Path("runs/finetune"))
    options.add_argument("--table", type=Path, nargs="+", help="sum up what runs printed to files")
    return run(body, options, arguments)


if __name__ == "__main__":
    main()
