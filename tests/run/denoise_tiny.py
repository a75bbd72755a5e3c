"""An encoder-decoder that a test can pre-train: the beasts that count, one layer, two seconds."""

from pathlib import Path
from typing import Any

import pytest

from qkv.run.train import Run
from tests.run.common import DECODER, TRAINING, Runs
from tests.run.fill_tiny import LEARNS, write_data


def values(folder: Path, kind: str = "spans") -> dict[str, Any]:
    return {
        "task": "denoise",
        "data": write_data(folder),
        "tokenizer": {"kind": "wordpiece", "vocab_size": 300},
        "model": {**DECODER, "n_encoder_layers": 1, "max_length": 40},
        "train": dict(TRAINING),
        "denoise": {"sentinels": 10, "kind": kind},
    }


RUNS = Runs(values, "beasts", learns=LEARNS)
recipe, run, job = RUNS.recipe, RUNS.run, RUNS.job


def learned(factory: pytest.TempPathFactory, kind: str = "spans") -> Run:
    return RUNS.learned(factory, kind, data_test_text="test.txt")
