"""Classifiers that a test can train: words decide the label, one layer, a second or two."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from qkv.run.train import Run
from tests.run.common import ENCODER, TRAINING, Runs, data_files, with_differences, write_lines

FILLER = ["the", "one", "with", "a", "on", "that", "was", "so", "and", "there"]
NOUNS = {"cat": "animal", "dog": "animal", "rose": "plant", "oak": "plant", "iron": "metal"}
Rows = list[tuple[str, ...]]


def sentence(draw: random.Random, *words: str) -> str:
    """The words among others that say nothing."""
    found = [*words, *draw.choices(FILLER, k=draw.randint(1, 5))]
    draw.shuffle(found)
    return " ".join(found)


def one_of_three(n: int, seed: int = 1, rare: float = 1.0) -> Rows:
    """A noun decides the class; `rare` is how often metal comes beside the other nouns."""
    draw = random.Random(seed)
    weights = [rare if kind == "metal" else 1.0 for kind in NOUNS.values()]
    nouns = draw.choices(list(NOUNS), weights, k=n)
    return [(sentence(draw, noun), NOUNS[noun]) for noun in nouns]


def some_of_three(n: int, seed: int = 1) -> Rows:
    """Each noun that is there gives its own label; there may be none."""
    draw = random.Random(seed)
    found = [draw.sample(["cat", "rose", "iron"], draw.randint(0, 3)) for _ in range(n)]
    return [(sentence(draw, *nouns), "|".join(sorted(nouns))) for nouns in found]


def how_many(n: int, seed: int = 1) -> Rows:
    """A number: 10 for each cat, and 50 to begin with."""
    draw = random.Random(seed)
    counts = [draw.randint(0, 4) for _ in range(n)]
    return [(sentence(draw, *["cat"] * count), str(50 + 10 * count)) for count in counts]


def which_first(n: int, seed: int = 1) -> Rows:
    """Pairs: which of the two texts has the cat."""
    draw = random.Random(seed)
    found: Rows = []
    for _ in range(n):
        nouns = draw.sample(["cat", "dog"], 2)
        label = "first" if nouns[0] == "cat" else "second"
        found.append((sentence(draw, nouns[0]), sentence(draw, nouns[1]), label))
    return found


TASKS: dict[str, Callable[..., Rows]] = {
    "class": one_of_three,
    "classes": some_of_three,
    "number": how_many,
    "pairs": which_first,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "class": {},
    "classes": {"classify_kind": "classes", "train_metric": "f1"},
    "number": {"classify_kind": "number"},
    "pairs": {},
}


def write_rows(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    columns = ["first", "second", "label"] if len(rows[0]) == 3 else ["text", "label"]
    return write_lines(path, map("\t".join, (columns, *rows)))


def write_data(folder: Path, task: str) -> dict[str, str]:

    def write(path: Path, n: int, seed: int) -> None:
        write_rows(path, TASKS[task](n, seed))

    pattern = f"{task}.{{}}.tsv"
    return data_files("examples", folder, pattern, write, train=240, valid=40, test=60)


def values(folder: Path, task: str = "class") -> dict[str, Any]:
    found: dict[str, Any] = {
        "task": "classify",
        "data": write_data(folder, task),
        "tokenizer": {"kind": "wordpiece", "vocab_size": 100},
        "model": {**ENCODER, "max_length": 32, "dropout": 0.1},
        "train": dict(TRAINING),
    }
    return with_differences(found, SETTINGS[task])


LEARNS: dict[str, Any] = {
    "model_dropout": 0.0,
    "model_norm_position": "pre",
    "model_init": "glorot",
    "model_pooling": "mean",
    "train_steps": 100,
    "train_warmup": 10,
    "train_valid_every": 50,
    "train_checkpoint_every": 1000,
}

RUNS = Runs(values, learns=LEARNS)
recipe, write_recipe, run, job = RUNS.recipe, RUNS.write_recipe, RUNS.run, RUNS.job
killed_and_resumed = RUNS.killed_and_resumed


def learned(factory: pytest.TempPathFactory, task: str = "class") -> Run:
    return RUNS.learned(factory, task, data_test_examples=f"{task}.test.tsv")
