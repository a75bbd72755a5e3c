"""Exact resume for real: processes that are killed with SIGKILL, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from qkv.weights import read_tensors
from tests.run.common import read_log
from tests.run.tiny import write_recipe

STEPS = 240
SETTINGS: dict[str, Any] = {
    "train_steps": STEPS,
    "train_valid_every": 50,
    "train_checkpoint_every": 30,
    "train_accumulate": 2,
    "train_batch_tokens": 120,
    "train_average": 3,
    "train_patience": 0,
    "model_dropout": 0.2,
    "train_warmup": 30,
}
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}  # two would fight over a busy machine

# In the middle of a step: the gradient is there and the weights have not moved.
DYING_STEP = """
import os, signal
import qkv.training.loop as loop
plain = loop.update
def update(model, optimizer, clip):
    if optimizer.state and next(iter(optimizer.state.values()))["step"] == 160:
        os.kill(os.getpid(), signal.SIGKILL)
    plain(model, optimizer, clip)
loop.update = update
from qkv.cli import main
main()
"""

# Half of a checkpoint is written, and then the machine is gone.
DYING_WRITER = """
import os, signal, sys
from pathlib import Path
import qkv.weights
plain = qkv.weights.save_file
def save_file(tensors, path, metadata):
    plain(tensors, path, metadata)
    if "step-00000090" in str(path):
        os.truncate(path, Path(path).stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
qkv.weights.save_file = save_file
from qkv.cli import main
main()
"""


def start(recipe: Path, out: Path, *more: str, program: str = "") -> subprocess.Popen[bytes]:
    how = ["-c", program] if program else ["-m", "qkv"]
    command = [sys.executable, *how, "train", str(recipe), "--out", str(out), *more]
    return subprocess.Popen(
        command, env=ONE_THREAD, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said.decode()


def last_step(out: Path) -> int:
    log = out / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def kill_at(process: subprocess.Popen[bytes], out: Path, step: int) -> None:
    """Kill the process once its log has reached a step."""
    while last_step(out) < step:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()


def die(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has killed itself, which is as sudden and comes at a known moment."""
    _, said = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, said.decode()


def losses(out: Path) -> list[dict[str, Any]]:
    return [{**record, "tokens_per_second": None} for record in read_log(out)]


def assert_same_end(out: Path, whole: Path) -> None:
    assert losses(out) == losses(whole)
    newest = f"checkpoints/step-{STEPS:08d}.safetensors"
    for name in ("model.safetensors", newest):
        found, expected = read_tensors(out / name), read_tensors(whole / name)
        assert found.keys() == expected.keys()
        # As bytes, for two NaNs or two zeros could be equal or not without being the same
        assert all(
            found[name].numpy().tobytes() == expected[name].numpy().tobytes() for name in found
        )
    assert (out / "README.md").read_text().splitlines()[2:-3] == (
        (whole / "README.md").read_text().splitlines()[2:-3]
    )


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("killed"), **SETTINGS)


@pytest.fixture(scope="module")
def whole(recipe: Path) -> Path:
    """The run that was never killed."""
    finish(start(recipe, recipe.parent / "whole"))
    return recipe.parent / "whole"


def test_killed_again_and_again_the_end_is_bit_for_bit_the_same(recipe: Path, whole: Path) -> None:
    out = recipe.parent / "cut"
    kill_at(start(recipe, out), out, 1)  # before any checkpoint
    kill_at(start(recipe, out, "--resume"), out, 70)
    die(start(recipe, out, "--resume", program=DYING_STEP))
    assert last_step(out) == 160
    newest = max((out / "checkpoints").glob("step-*.safetensors"))
    assert newest.name == "step-00000150.safetensors"
    os.truncate(newest, newest.stat().st_size - 1)
    finish(start(recipe, out, "--resume"))
    assert_same_end(out, whole)


def test_killed_while_it_writes_a_checkpoint(recipe: Path, whole: Path) -> None:
    out = recipe.parent / "half written"
    die(start(recipe, out, program=DYING_WRITER))
    checkpoints = out / "checkpoints"
    assert not (checkpoints / "step-00000090.safetensors").exists()
    assert (checkpoints / "step-00000060.safetensors").exists()
    finish(start(recipe, out, "--resume"))
    assert_same_end(out, whole)
