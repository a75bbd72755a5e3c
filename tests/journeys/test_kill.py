"""Exact resume for real: processes that are killed or stopped by signals, and started again."""

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from qkv.config import load_recipe
from qkv.run.train import train
from qkv.weights import read_tensors
from tests.forking import Python
from tests.run.common import read_log, silence
from tests.run.tiny import write_recipe

STEPS = 40
SETTINGS: dict[str, Any] = {
    "train_steps": STEPS,
    "train_valid_every": 9,
    "train_checkpoint_every": 6,
    "train_accumulate": 2,
    "train_batch_tokens": 120,
    "train_average": 3,
    "train_patience": 0,
    "model_dropout": 0.2,
    "train_warmup": 10,
}

# A process that sends itself a signal in a step, when the gradient is there and the weights have
# not moved, or when half of a checkpoint is written.
DYING = """
import os, sys
where, step, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
del sys.argv[1:4]
import qkv.training.layout, qkv.weights
update, save_file = qkv.training.layout.update, qkv.weights.save_file

def dying_update(model, optimizer, clip):
    state = next(iter(optimizer.state.values()), {"step": 0})
    if where == "step" and state["step"] == step:
        os.kill(os.getpid(), number)
    update(model, optimizer, clip)

def dying_save_file(tensors, path, metadata):
    save_file(tensors, path, metadata)
    if where == "checkpoint" and f"step-{step:08d}" in str(path):
        os.truncate(path, os.path.getsize(path) // 2)
        os.kill(os.getpid(), number)

qkv.training.layout.update, qkv.weights.save_file = dying_update, dying_save_file
from qkv.cli import main
main()
"""


def end(process: Python, code: int = 0) -> list[str]:
    """Wait for the end, which must come with this exit code; return the lines of stderr."""
    _, said = process.communicate()
    assert process.returncode == code, said
    return said.splitlines()


def losses(out: Path) -> list[dict[str, Any]]:
    return [{**record, "tokens_per_second": None} for record in read_log(out)]


def newest(out: Path) -> Path:
    return max((out / "checkpoints").glob("step-*.safetensors"))


def test_stopped_again_and_again_the_end_is_bit_for_bit_the_same(tmp_path: Path) -> None:
    recipe, out, whole = write_recipe(tmp_path, **SETTINGS), tmp_path / "cut it", tmp_path / "whole"
    train(load_recipe(recipe), whole, console=silence())
    begin = ("train", recipe, "--out", out)
    killed, stopped = signal.SIGKILL, signal.SIGTERM

    end(Python(["-c", DYING, "step", 14, int(killed), *begin]), -killed)
    end(Python(["-c", DYING, "checkpoint", 18, int(killed), *begin, "--resume"]), -killed)
    assert newest(out).name == "step-00000012.safetensors"
    os.truncate(newest(out), newest(out).stat().st_size - 1)
    dying = Python(["-c", DYING, "step", 25, int(stopped), *begin, "--resume"])
    said = end(dying, 128 + stopped)
    assert "· resuming from step 6" in said
    assert newest(out).name == "step-00000026.safetensors"
    assert said[-2] == "· stopped after step 26; resume with:"
    command = shlex.split(said[-1])
    assert command[:4] == [sys.executable, "-m", "qkv", "train"]
    assert "· resuming from step 26" in end(Python(command[1:]))

    assert losses(out) == losses(whole)
    for name in ("model.safetensors", f"checkpoints/step-{STEPS:08d}.safetensors"):
        found, expected = read_tensors(out / name), read_tensors(whole / name)
        assert found.keys() == expected.keys()
        # As bytes, for two NaNs or two zeros could be equal or not without being the same
        for key, tensor in found.items():
            assert tensor.numpy().tobytes() == expected[key].numpy().tobytes()
    cards = [(run / "README.md").read_text().splitlines()[2:-3] for run in (out, whole)]
    assert cards[0] == cards[1]
