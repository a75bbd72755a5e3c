"""An encoder that a test can train: a language of beasts that count, one layer, two seconds."""

import random
from pathlib import Path
from typing import Any

import pytest

from qkv.run.train import Run
from tests.run.common import ENCODER, TRAINING, Runs, data_files, write_lines
from tests.run.tiny import WORDS

BEASTS = ["cat", "dog", "bird", "fish"]


def documents(n: int, seed: int = 1) -> list[str]:
    """One beast counts on, a sentence a number: all is known from the rest, and so is the order."""
    draw = random.Random(seed)
    found = []
    for _ in range(n):
        beast, size = draw.choice(BEASTS), draw.randint(2, 4)
        first = draw.randrange(len(WORDS) + 1 - size)
        found.append(" ".join(f"the {beast} sees {n} ." for n in WORDS[first : first + size]))
    return found


def write_data(folder: Path) -> dict[str, str]:

    def write(path: Path, n: int, seed: int) -> None:
        write_lines(path, documents(n, seed))

    return data_files("text", folder, "{}.txt", write, text=400, valid=80, test=40)


def values(folder: Path, pairs: str = "none") -> dict[str, Any]:
    return {
        "task": "fill",
        "data": write_data(folder),
        "tokenizer": {"kind": "wordpiece", "vocab_size": 300},
        "model": {**ENCODER, "max_length": 32, "dropout": 0.1},
        "train": dict(TRAINING),
        "mask": {"pairs": pairs},
    }


LEARNS: dict[str, Any] = {
    "model_d_model": 32,
    "model_d_ff": 64,
    "model_dropout": 0.0,
    "model_norm_position": "pre",
    "model_init": "glorot",
    "train_steps": 300,
    "train_batch_tokens": 600,
    "train_warmup": 20,
    "train_lr": 0.003,
    "train_optimizer": "muon",
    "train_valid_every": 100,
    "train_checkpoint_every": 1000,
}

RUNS = Runs(values, "beasts", learns=LEARNS)
recipe, run, job = RUNS.recipe, RUNS.run, RUNS.job


def learned(factory: pytest.TempPathFactory, pairs: str = "none") -> Run:
    return RUNS.learned(factory, pairs, data_test_text="test.txt")
