"""An encoder-decoder that a test can pre-train: the beasts that count, one layer, two seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qkv.run.train import Run
from tests.run.common import TRAINING, Runs, with_differences
from tests.run.fill_tiny import documents
from tests.run.language_tiny import write_lines

SIZES: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "d_ff": 32,
    "n_encoder_layers": 1,
    "n_decoder_layers": 1,
    "max_length": 40,
    "dropout": 0.1,
}


def values(folder: Path, **differences: Any) -> dict[str, Any]:
    """A recipe as plain values; differences are named section_key."""
    for seed, (name, n) in enumerate([("text", 400), ("valid", 80), ("test", 40)], start=1):
        if not (folder / f"{name}.txt").exists():
            write_lines(folder / f"{name}.txt", documents(n, seed))
    found: dict[str, Any] = {
        "task": "denoise",
        "data": {"text": str(folder / "text.txt"), "valid_text": str(folder / "valid.txt")},
        "tokenizer": {"kind": "wordpiece", "vocab_size": 300},
        "model": dict(SIZES),
        "train": dict(TRAINING),
        "denoise": {"sentinels": 10},
    }
    return with_differences(found, differences)


RUNS = Runs(values, "beasts")
recipe, run, job = RUNS.recipe, RUNS.run, RUNS.job


# Settings with which the model learns its language.
LEARNS: dict[str, Any] = {
    "model_d_model": 32,
    "model_d_ff": 64,
    "model_dropout": 0.0,
    "model_norm_position": "pre",
    "train_steps": 300,
    "train_batch_tokens": 600,
    "train_warmup": 20,
    "train_lr": 0.003,
    "train_optimizer": "muon",
    "train_valid_every": 100,
    "train_checkpoint_every": 1000,
}

_trained: dict[str, Run] = {}


def learned(factory: pytest.TempPathFactory, kind: str = "spans") -> Run:
    """A run that has learnt its language, made once for all tests; nobody may change its folder."""
    if kind not in _trained:
        folder = factory.mktemp(f"learned-denoise-{kind}")
        more = {"data_test_text": str(folder / "test.txt"), "denoise_kind": kind}
        _trained[kind] = run(folder, **LEARNS, **more)
    return _trained[kind]
