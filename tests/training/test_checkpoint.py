"""Checkpoints: whole or not there, and everything a run remembers."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from qkv.config import TrainConfig
from qkv.errors import UserError
from qkv.training import TrainState, build_optimizer
from qkv.training.checkpoint import (
    averaged,
    checkpoint_path,
    copied_checkpoint,
    delete_old,
    find_checkpoints,
    load_checkpoint,
    read_state,
    snapshot_path,
)
from qkv.weights import read_metadata, read_tensors, write_tensors
from tests.training.helpers import assert_equal, copy_of, small_model, step_with_drawn_gradients

STATE = TrainState(7, 1.5, -3.25, 4, 4, 2, [2, 4])


def stepped(seed: int, **differences: object):  # type: ignore[no-untyped-def]
    """A model and an optimizer that has moments to remember."""
    model = small_model(**differences)
    optimizer = build_optimizer(model, TrainConfig(lr=0.1))
    torch.manual_seed(seed)
    for _ in range(2):
        step_with_drawn_gradients(model, optimizer, 0.1)
    return model, optimizer


def save_checkpoint(folder, model, optimizer, state):  # type: ignore[no-untyped-def]
    """Copy all that a run remembers, and write it at once."""
    copied_checkpoint(folder, model, optimizer, state)()
    return checkpoint_path(folder, state.step)


@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_checkpoint_brings_back_weights_moments_and_counters(tmp_path: Path, tie: str) -> None:
    model, optimizer = stepped(1, tie=tie)
    fresh, fresh_optimizer = stepped(2, tie=tie)
    path = save_checkpoint(tmp_path, model, optimizer, STATE)
    assert path == tmp_path / "step-00000007.safetensors"
    assert load_checkpoint(path, fresh, fresh_optimizer) == STATE
    assert_equal(copy_of(fresh), copy_of(model))
    for mine, theirs in zip(model.parameters(), fresh.parameters(), strict=True):
        assert_equal(fresh_optimizer.state[theirs], optimizer.state[mine])
    assert len(optimizer.state[mine]) == 3  # step, mean, square


def test_a_checkpoint_of_another_model_is_refused_with_each_name(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, *stepped(1), STATE)
    with pytest.raises(UserError) as caught:
        load_checkpoint(path, *stepped(1, d_ff=20, tie="none"))
    message = str(caught.value)
    assert "missing output.projection.weight" in message
    assert "missing target_embedding.table.weight" in message
    assert "encoder.blocks.0.feed_forward.inner.weight is [24, 8] but should be [20, 8]" in message


def test_checkpoints_have_a_format_number_and_those_before_it_can_be_read(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, *stepped(1), STATE)
    assert read_metadata(path)["format"] == "1"
    tensors, state = read_tensors(path), json.dumps(dataclasses.asdict(STATE))
    write_tensors(path, tensors, {"progress": state})  # as it was without a number
    fresh, optimizer = stepped(2)
    assert load_checkpoint(path, fresh, optimizer) == STATE
    assert_equal(copy_of(fresh), copy_of(stepped(1)[0]))
    write_tensors(path, tensors, {"format": "2", "state": state})
    with pytest.raises(UserError, match="is a checkpoint of format 2, but this qkv reads format 1"):
        read_state(path)


@pytest.mark.parametrize("size", [0, 4, 100, 0.5, 0.999, -1, "no state", "bad state"])
def test_unreadable_checkpoints_are_found_and_named(tmp_path: Path, size: float | str) -> None:
    model, optimizer = stepped(1)
    before = save_checkpoint(tmp_path, model, optimizer, TrainState(step=5))
    newest = save_checkpoint(tmp_path, model, optimizer, TrainState(step=10))
    assert find_checkpoints(tmp_path) == ([newest, before], {})
    content = newest.read_bytes()
    if isinstance(size, str):
        metadata = {"no state": {}, "bad state": {"format": "1", "state": '{"step": '}}[size]
        write_tensors(newest, copy_of(model), metadata)
    else:
        newest.write_bytes(content[: size if isinstance(size, int) else int(size * len(content))])
    readable, unreadable = find_checkpoints(tmp_path)
    assert readable == [before]
    assert list(unreadable) == [newest] and str(newest) in str(unreadable[newest])


def test_two_whole_checkpoints_stay_and_the_weights_that_they_will_average(tmp_path: Path) -> None:
    model, optimizer = stepped(1)
    for step in (2, 4, 6, 8, 10, 12):
        write_tensors(snapshot_path(tmp_path, step), copy_of(model), {})
    for step, snapshots in ((3, [2]), (5, [2, 4]), (9, [6, 8])):
        save_checkpoint(tmp_path, model, optimizer, TrainState(step=step, snapshots=snapshots))
    (tmp_path / "step-00000011.safetensors").write_bytes(b"cut")
    delete_old(tmp_path, 9)
    kept = (2, 4, 6, 8, 10, 12)  # the last two belong to the checkpoint that comes next
    names = [f"step-{step:08d}" for step in (5, 9)] + [f"weights-{step:08d}" for step in kept]
    assert sorted(path.stem for path in tmp_path.iterdir()) == names
    save_checkpoint(tmp_path, model, optimizer, TrainState(step=13, snapshots=[10, 12]))
    delete_old(tmp_path, 13)
    kept = (6, 8, 10, 12)
    names = [f"step-{step:08d}" for step in (9, 13)] + [f"weights-{step:08d}" for step in kept]
    assert sorted(path.stem for path in tmp_path.iterdir()) == names


def test_the_average_is_exact(tmp_path: Path) -> None:
    """Summed in float64: 2²⁴ + 1 + 1 would lose both ones in float32."""
    values = [2.0**24, 1.0, 1.0]
    paths = [snapshot_path(tmp_path, step) for step in range(3)]
    for path, value in zip(paths, values, strict=True):
        write_tensors(path, {"w": torch.tensor([value, -value])}, {})
    mean = averaged(paths)["w"]
    assert mean.dtype == torch.float32
    assert torch.equal(mean, torch.tensor([sum(values) / 3, -sum(values) / 3]))
