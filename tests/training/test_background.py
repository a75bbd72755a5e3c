"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from qkv.training import checkpoint
from qkv.training.background import BackgroundWrite
from qkv.training.checkpoint import checkpoint_path, find_checkpoints, read_state
from qkv.weights import read_tensors, write_tensors
from tests.training.helpers import small_trainer


def test_training_goes_on_while_a_checkpoint_of_the_step_before_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, plain = threading.Event(), write_tensors

    def slow(path: Path, tensors: object, metadata: object) -> None:
        if "step-" in path.name:
            assert go_on.wait(60)
        plain(path, tensors, metadata)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "write_tensors", slow)
    trainer, _, _ = small_trainer(tmp_path)
    steps = trainer.stream.steps_from(0)
    trainer.take_step(next(steps))
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.save()
    trainer.take_step(next(steps))  # neither waits, nor changes what is written
    assert find_checkpoints(tmp_path) == ([], {})
    go_on.set()
    trainer.writing.wait()
    [path] = find_checkpoints(tmp_path)[0]
    assert read_state(path).step == 1
    stored = read_tensors(path)
    assert all(torch.equal(stored[f"model.{name}"], value) for name, value in before.items())


def test_a_first_checkpoint_that_is_still_written_at_a_validation_needs_no_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, _, _ = small_trainer(tmp_path, steps=4, checkpoint_every=2, valid_every=3)
    waited, plain, wait = threading.Event(), write_tensors, trainer.writing.wait

    def slow(path: Path, tensors: object, metadata: object) -> None:
        if checkpoint_path(tmp_path, 2) == path:
            assert waited.wait(60)
        plain(path, tensors, metadata)  # type: ignore[arg-type]

    def noted_wait() -> None:
        if trainer.state.step == 3:
            waited.set()
        wait()

    monkeypatch.setattr(checkpoint, "write_tensors", slow)
    monkeypatch.setattr(trainer.writing, "wait", noted_wait)
    trainer.run()
    readable = find_checkpoints(tmp_path)[0]
    assert readable == [checkpoint_path(tmp_path, 4), checkpoint_path(tmp_path, 2)]


def test_a_large_checkpoint_is_written_at_once_without_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MOST_COPIED", 0)
    plain, written = write_tensors, []

    def noting(path: Path, tensors: dict[str, torch.Tensor], metadata: object) -> None:
        written.extend(tensor.data_ptr() for tensor in tensors.values())
        plain(path, tensors, metadata)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "write_tensors", noting)
    trainer, _, _ = small_trainer(tmp_path)
    trainer.take_step(next(trainer.stream.steps_from(0)))
    trainer.save()
    assert {weight.data_ptr() for weight in trainer.model.parameters()} <= set(written)
    [path] = find_checkpoints(tmp_path)[0]
    trainer.writing.wait()
    assert read_state(path).step == 1


def test_an_error_of_the_disk_is_raised_by_the_next_checkpoint_or_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, tensors: object, metadata: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    trainer, _, _ = small_trainer(tmp_path, steps=4, checkpoint_every=2, valid_every=100)
    monkeypatch.setattr(checkpoint, "write_tensors", full)
    with pytest.raises(OSError, match="No space left"):
        trainer.run()
    assert find_checkpoints(tmp_path) == ([], {})


def test_one_file_is_written_at_a_time() -> None:
    writing, running, most = BackgroundWrite(), [0], [0]
    lock = threading.Lock()

    def write() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.01)
        with lock:
            running[0] -= 1

    done: list[int] = []
    for number in range(5):
        writing.start(write, lambda number=number: done.append(number))  # type: ignore[misc]
    writing.wait()
    assert most == [1]
    assert done == [0, 1, 2, 3, 4]
