"""`qkv train --workers`: one display, one message when a worker fails, and a run that goes on."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

import qkv
from qkv.cli.train import check_workers
from qkv.cli.train import train as train_command
from qkv.errors import UserError
from qkv.run.train import train
from qkv.training.checkpoint import find_checkpoints, read_state
from qkv.weights import read_tensors
from tests.forking import FORKING_WORKERS, Python
from tests.run import tiny
from tests.run.common import read_log, silence


def start(recipe: Path, out: Path, *options: str) -> Python:
    train = ["train", recipe, "--out", out, "--workers=2", *options]
    return Python(["-c", FORKING_WORKERS, *train], merged=True)


def children(process: Python) -> list[int]:
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(number) for number in listed.split()]


def wait_for_checkpoint(out: Path, after: int = 0) -> int:
    """Wait until there is one after a step; return its step."""
    while True:
        steps = [read_state(path).step for path in find_checkpoints(out / "checkpoints")[0]]
        if steps and steps[0] > after:
            return steps[0]
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the workers in /proc")
def test_a_run_on_two_workers_is_stopped_resumed_killed_and_resumed_by_one(tmp_path: Path) -> None:
    settings = {"train_valid_every": 10_000, "train_checkpoint_every": 10, "train_patience": 0}
    recipe = tiny.write_recipe(tmp_path, train_steps=100_000, **settings)
    out = tmp_path / "run"
    first = start(recipe, out)
    wait_for_checkpoint(out)
    first.send_signal(signal.SIGINT)
    said = first.communicate()[0]
    assert first.returncode == 130
    stopped = wait_for_checkpoint(out)
    assert said.count(f"stopped after step {stopped}; resume with:") == 1
    assert f" train {out}/recipe.toml --out {out} --resume --workers 2\n" in said
    assert said.count("qkv: stopped\n") == 1
    assert said.count("on 2 workers (cpu)") == said.count("first example:") == 1

    second = start(recipe, out, "--resume", "--set", "train.shard=full")
    reached = wait_for_checkpoint(out, after=stopped)
    worker = children(second)[1]
    os.kill(worker, signal.SIGKILL)
    said = second.communicate()[0]
    assert second.returncode == 128 + signal.SIGKILL
    assert "Traceback" not in said
    assert "qkv: Worker 1 was killed by SIGKILL" in said
    resuming = f"train {out}/recipe.toml --out {out} --resume --workers 2"
    assert re.search(rf"resume with:\n  .* {resuming}\n", said)
    assert not children_left(worker)

    steps = wait_for_checkpoint(out, after=reached - 1) + 3
    final = tiny.recipe(tmp_path, train_steps=steps, **settings)
    run = train(final, out, resume=True, console=silence())
    assert [record["step"] for record in read_log(out)] == list(range(1, steps + 1))
    assert run.state.step == steps
    assert qkv.load(out, device="cpu").translate("1 2")


def children_left(worker: int) -> bool:
    """Whether a worker that was killed is still there."""
    try:
        os.kill(worker, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_mistake_that_all_workers_meet_is_told_once(tmp_path: Path) -> None:
    recipe = tiny.write_recipe(tmp_path)
    (tmp_path / "digits.tsv").write_text("one column\n" * 9)
    train = ["train", recipe, "--out", tmp_path / "run", "--workers=2"]
    process = Python(["-m", "qkv", *train])  # its workers are new interpreters, as everywhere
    _, said = process.communicate()
    assert process.returncode == 2
    assert said.count("qkv: ") == 1
    assert "digits.tsv" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("gpus", "workers", "device", "message"),
    [(2, 2, "auto", "both given"), (99, None, "auto", "this machine has")],
)
def test_workers_without_a_device_are_refused(
    gpus: int, workers: int | None, device: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_workers(gpus, workers, device)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the workers in /proc")
def test_a_run_whose_worker_is_killed_goes_on_by_itself_to_the_same_weights(tmp_path: Path) -> None:
    settings = {"train_valid_every": 20, "train_checkpoint_every": 10, "train_patience": 0}
    recipe = tiny.write_recipe(tmp_path, train_steps=40, train_average=1, **settings)
    whole, cut = start(recipe, tmp_path / "whole"), tmp_path / "cut"
    assert whole.communicate() and whole.returncode == 0
    process = start(recipe, cut, "--restarts", "2")
    wait_for_checkpoint(cut)
    os.kill(children(process)[1], signal.SIGKILL)
    said = process.communicate()[0]
    assert process.returncode == 0, said
    assert "qkv: Worker 1 was killed by SIGKILL; the run goes on from its last checkpoint" in said
    assert said.count("(restart 1 of 2)") == said.count("resuming from step ") == 1
    assert [record["step"] for record in read_log(cut)] == list(range(1, 41))
    expected = read_tensors(tmp_path / "whole" / "model.safetensors")
    for name, tensor in read_tensors(cut / "model.safetensors").items():
        assert torch.equal(tensor, expected[name]), name


def test_restarts_without_workers_are_refused(tmp_path: Path) -> None:
    recipe = tiny.write_recipe(tmp_path)
    with pytest.raises(UserError, match="--restarts is about workers"):
        train_command(recipe, tmp_path / "run", restarts=1)
