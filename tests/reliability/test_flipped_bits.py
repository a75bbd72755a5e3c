"""A flipped bit anywhere in a checkpoint or a model is found, and an earlier checkpoint serves."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import qkv
from bench.flips import flip_checkpoint, flip_data, flip_model, flipped
from qkv.errors import UserError
from qkv.run.train import Run
from qkv.weights import read_metadata, read_tensors, write_tensors
from tests.run.common import everything
from tests.run.tiny import RUNS, run


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("flips"), train_valid_bleu=False)


@pytest.mark.parametrize("flip", [flip_checkpoint, flip_model, flip_data])
def test_no_flipped_bit_goes_unnoticed(done: Run, tmp_path: Path, flip) -> None:
    counts = flip(done.folder, tmp_path, random.Random(1), 40)
    assert counts["unnoticed"] == 0
    assert counts["refused"] + counts["harmless"] == 40


def test_a_flipped_bit_in_the_newest_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    settings = {"train_valid_bleu": False}
    expected = run(tmp_path, "whole", **settings)
    cut = RUNS.killed_at(11, tmp_path, **settings)
    newest = max((cut / "checkpoints").glob("step-*"))
    newest.write_bytes(flipped(newest.read_bytes(), 8 * newest.stat().st_size - 9))
    assert RUNS.resumed(tmp_path, **settings) == cut
    assert newest.name == "step-00000010.safetensors"
    assert everything(cut) == everything(expected.folder)


def test_where_all_checkpoints_are_damaged_none_is_lost(tmp_path: Path) -> None:
    cut = RUNS.killed_at(11, tmp_path, train_valid_bleu=False)
    paths = sorted((cut / "checkpoints").glob("step-*"))
    for path in paths:
        path.write_bytes(flipped(path.read_bytes(), 8 * path.stat().st_size - 9))
    with pytest.raises(UserError, match=r"step-00000010\.safetensors because: .* checksum"):
        RUNS.resumed(tmp_path, train_valid_bleu=False)
    assert sorted((cut / "checkpoints").glob("step-*")) == paths


def test_a_damaged_snapshot_leaves_the_average_out_and_the_best_weights_in(tmp_path: Path) -> None:
    settings = {"train_average": 3, "train_valid_bleu": False}
    cut = RUNS.killed_at(11, tmp_path, **settings)
    snapshot = min((cut / "checkpoints").glob("weights-*"))
    snapshot.write_bytes(flipped(snapshot.read_bytes(), 8 * snapshot.stat().st_size - 9))
    RUNS.resumed(tmp_path, **settings)
    assert qkv.load(cut, "cpu").translate("1 2") is not None


def test_weights_without_a_checksum_are_read(done: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(done.folder, tmp_path / "copy")
    path = folder / "model.safetensors"
    assert len(read_metadata(path)["saved_as"].partition("-")[2]) == 8
    write_tensors(path, read_tensors(path), {})
    assert qkv.load(folder, "cpu").translate("1 2") == qkv.load(done.folder).translate("1 2")
