"""Checkpoints: whole or not there, and everything a run remembers."""

from pathlib import Path

import pytest
import torch

from qkv.config import TrainConfig
from qkv.errors import UserError
from qkv.training import Progress, build_optimizer, update
from qkv.training.checkpoint import (
    averaged,
    load_checkpoint,
    newest_checkpoints,
    save_checkpoint,
    snapshot_path,
    tidy,
)
from qkv.weights import write_tensors
from tests.training.helpers import assert_equal, copy_of, small_model

PROGRESS = Progress(7, 1.5, -3.25, 4, 4, 2, [2, 4])


def stepped(seed: int, **differences: object):  # type: ignore[no-untyped-def]
    """A model and an optimiser that has moments to remember."""
    model = small_model(**differences)
    optimizer = build_optimizer(model, TrainConfig(lr=0.1))
    torch.manual_seed(seed)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        update(model, optimizer, 0.0)
    return model, optimizer


@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_checkpoint_brings_back_weights_moments_and_progress(tmp_path: Path, tie: str) -> None:
    model, optimizer = stepped(1, tie=tie)
    other, other_optimizer = stepped(2, tie=tie)
    path = save_checkpoint(tmp_path, model, optimizer, PROGRESS)
    assert path == tmp_path / "step-00000007.safetensors"
    assert load_checkpoint(path, other, other_optimizer) == PROGRESS
    assert_equal(copy_of(model), copy_of(other))
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert_equal(optimizer.state[mine], other_optimizer.state[theirs])
    assert len(optimizer.state[mine]) == 3  # step, mean, square


def test_a_checkpoint_of_another_model_is_refused_with_each_name(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, *stepped(1), PROGRESS)
    with pytest.raises(UserError) as caught:
        load_checkpoint(path, *stepped(1, d_ff=20, tie="none"))
    message = str(caught.value)
    assert "missing output.projection.weight" in message
    assert "missing target_embedding.table.weight" in message
    assert "encoder.blocks.0.feed_forward.inner.weight is [24, 8] but should be [20, 8]" in message


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, 0.999, -1])
def test_a_truncated_checkpoint_is_passed_over(tmp_path: Path, kept: float) -> None:
    model, optimizer = stepped(1)
    before = save_checkpoint(tmp_path, model, optimizer, Progress(step=5))
    newest = save_checkpoint(tmp_path, model, optimizer, Progress(step=10))
    assert newest_checkpoints(tmp_path, 3) == [newest, before]
    content = newest.read_bytes()
    newest.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    assert newest_checkpoints(tmp_path, 3) == [before]


def test_where_none_is_whole_there_is_none(tmp_path: Path) -> None:
    assert newest_checkpoints(tmp_path / "nowhere", 1) == []
    (tmp_path / "step-00000001.safetensors").write_bytes(b"")
    assert newest_checkpoints(tmp_path, 1) == []


def test_two_whole_checkpoints_stay_and_the_weights_that_they_will_average(tmp_path: Path) -> None:
    model, optimizer = stepped(1)
    for step in (2, 4, 6, 8, 10, 12):
        write_tensors(snapshot_path(tmp_path, step), copy_of(model), {})
    for step, snapshots in ((3, [2]), (5, [2, 4]), (9, [6, 8])):
        progress = Progress(step=step, snapshots=snapshots)
        save_checkpoint(tmp_path, model, optimizer, progress)
    (tmp_path / "step-00000011.safetensors").write_bytes(b"cut")
    tidy(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000005.safetensors",
        "step-00000009.safetensors",
        "weights-00000002.safetensors",
        "weights-00000004.safetensors",
        "weights-00000006.safetensors",
        "weights-00000008.safetensors",
    ]


def test_the_average_is_exact(tmp_path: Path) -> None:
    """Summed in float64: 2²⁴ + 1 + 1 would lose both ones in float32."""
    values = [2.0**24, 1.0, 1.0]
    paths = [snapshot_path(tmp_path, step) for step in range(3)]
    for path, value in zip(paths, values, strict=True):
        write_tensors(path, {"w": torch.tensor([value, -value])}, {})
    mean = averaged(paths)["w"]
    assert mean.dtype == torch.float32
    assert torch.equal(mean, torch.tensor([sum(values) / 3, -sum(values) / 3]))
