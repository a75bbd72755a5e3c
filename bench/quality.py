"""How good a shipped recipe gets, and how fast: `python -m bench.quality --data path/to/data`.

Each run is the command that a person types (`qkv train recipes/…`), in a process of its own. The
clock starts with the process: reading, tokenizer, compiling, validations and scores are all in it.

python -m bench.quality --data DIR --tasks multi30k --seeds 3 --save
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from bench.measure import RECIPES, Session, parser, run
from qkv.errors import UserError

SCORE = re.compile(r"(valid|test): (BLEU|chrF) ([\d.]+)")
VALIDATION = re.compile(r"step ([\d,]+)/.* valid ([\d.]+)")


@dataclass(frozen=True)
class Task:
    """A shipped recipe, its files under --data, and the validation loss whose time is taken."""

    recipe: str
    files: dict[str, str]
    reached: float = 0.0


def pairs(folder: str, source: str, target: str, test: str) -> dict[str, str]:
    """Return the settings that name the files of pairs."""
    splits = {"": "train.{}.gz", "valid_": "valid.{}", "test_": f"{test}.{{}}"}
    return {
        f"data.{split}{side}": f"{folder}/{name.format(language)}"
        for split, name in splits.items()
        for side, language in (("source", source), ("target", target))
    }


TASKS = {
    "multi30k": Task("multi30k", pairs("multi30k", "en", "de", "test2016")),
    "multi30k_fr": Task("multi30k", pairs("multi30k", "en", "fr", "test2016")),
    "tatoeba_zh_en": Task("tatoeba_zh_en", pairs("tatoeba_en_zh", "zh", "en", "test")),
    "tatoeba_en_de": Task("tatoeba_en_de", pairs("tatoeba_en_de", "en", "de", "test")),
    "shakespeare": Task("shakespeare", {"data.text": "tinyshakespeare/input.txt.gz"}, 1.4697),
}


@dataclass
class Outcome:
    """What a run printed, and when."""

    figures: dict[str, float] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    best: float = float("inf")

    def read(self, line: str, seconds: float, reached: float) -> None:
        """Take the figures out of a line that was printed after some seconds."""
        self.said.append(line)
        if match := SCORE.match(line):
            split, name, value = match.groups()
            self.figures[f"{split} {name}"] = float(value)
        if reached and (match := VALIDATION.match(line)):
            step, loss = int(match[1].replace(",", "")), float(match[2])
            if loss < self.best:
                self.best = loss
                self.figures |= {"validation loss": loss, "at step": step}
            if loss <= reached:
                self.figures.setdefault(f"seconds to {reached}", round(seconds, 1))


def measure(task: Task, seed: int, session: Session) -> dict[str, float]:
    """Train a recipe by the command line and return its scores and how long it took."""
    options = session.options
    settings = {name: str(options.data / path) for name, path in task.files.items()}
    settings |= {"train.seed": str(seed), "train.device": options.device}
    out = options.out / f"{task.recipe}-{seed}-{time.time_ns()}"
    command = [sys.executable, "-m", "qkv", "train", str(RECIPES / f"{task.recipe}.toml")]
    command += ["--out", str(out), *(f"--set={name}={value}" for name, value in settings.items())]
    command += [f"--set={setting}" for setting in options.set]
    outcome, start = Outcome(), time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            outcome.read(line, time.perf_counter() - start, task.reached)
    if child.returncode:
        raise UserError(f"{' '.join(command)} failed: {''.join(outcome.said[-5:])}")
    return outcome.figures | {"seconds, command to scores": round(time.perf_counter() - start, 1)}


def body(session: Session) -> None:
    """Run the recipes that were asked for, a row a seed, then their mean."""
    for name in session.options.tasks:
        found = []
        for seed in range(session.options.seeds):
            found.append(measure(TASKS[name], seed, session))
            session.record(f"quality.{name}.{seed}", f"seed {seed}", found[-1])
        shared = [key for key in found[0] if key != "at step" and all(key in one for one in found)]
        means = {key: round(mean(one[key] for one in found), 4) for key in shared}
        if len(found) > 1:
            session.record(f"quality.{name}.mean", "mean", means)


def main(arguments: Sequence[str] | None = None) -> Session:
    """Run the command."""
    options = parser("bench.quality", __doc__)
    options.add_argument("--data", type=Path, required=True, help="folder of the corpora's folders")
    options.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    options.add_argument("--seeds", type=int, default=1, help="runs of each recipe")
    options.add_argument("--set", nargs="+", default=[], help="section.key=value, for all runs")
    options.add_argument("--out", type=Path, default=Path("runs/quality"))
    return run(body, options, arguments)


if __name__ == "__main__":
    main()
