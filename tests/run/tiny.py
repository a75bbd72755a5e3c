"""A translator that a test can train: digits to words, one layer, a second or two."""

import random
from pathlib import Path
from typing import Any

import pytest

from qkv.run.train import Run
from tests.run.common import DECODER, TRAINING, Runs, write_lines

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def spell(digits: str) -> str:
    """What the model is to learn: "3 1" → "three one"."""
    return " ".join(WORDS[int(digit)] for digit in digits.split())


def sources(n: int, seed: int = 1, longest: int = 4) -> list[str]:
    draw = random.Random(seed)
    return [
        " ".join(str(draw.randrange(10)) for _ in range(draw.randint(1, longest))) for _ in range(n)
    ]


def write_pairs(path: Path, n: int = 200, seed: int = 1, shuffled: bool = False) -> Path:
    """Digits and their words as TSV; `shuffled`: with those of some other line."""
    lines = sources(n, seed)
    targets = [spell(line) for line in lines]
    if shuffled:
        random.Random(seed).shuffle(targets)
    return write_lines(path, map("\t".join, zip(lines, targets, strict=True)))


def values(folder: Path, n: int = 200) -> dict[str, Any]:
    if not (folder / "digits.tsv").exists():
        write_pairs(folder / "digits.tsv", n)
    return {
        "data": {"pairs": str(folder / "digits.tsv"), "max_length": 30},
        "tokenizer": {"kind": "wordpiece", "vocab_size": 60},
        "model": {**DECODER, "n_encoder_layers": 1, "max_length": 32},
        "train": {**TRAINING, "batch_tokens": 200},
        "decode": {"max_length": 4},  # a model that has learnt nothing never ends
    }


# Settings with which the model learns the task: some 95 % of new lines exactly right.
LEARNS: dict[str, Any] = {
    "tokenizer_vocab_size": 100,
    "model_d_model": 32,
    "model_d_ff": 64,
    "model_dropout": 0.0,
    "model_norm_position": "pre",
    "train_steps": 350,
    "train_batch_tokens": 400,
    "train_warmup": 30,
    "train_label_smoothing": 0.0,
    "train_valid_every": 100,
    "train_checkpoint_every": 1000,
    "decode_max_length": 0,
}

RUNS = Runs(values, "digits", learns=LEARNS)
recipe, write_recipe, run = RUNS.recipe, RUNS.write_recipe, RUNS.run


def learned(factory: pytest.TempPathFactory) -> Run:
    return RUNS.learned(factory, 800)
