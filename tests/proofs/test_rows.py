"""Of a sound model, every row that applies passes; what does not apply says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import qkv
from qkv.errors import UserError
from qkv.proofs import ROWS, Proof, verify
from tests.proofs.models import KINDS, folder_of, translator
from tests.tasks.understand_tiny import classifier

pytestmark = pytest.mark.usefixtures("no_transformers")
Folder = Callable[[str], Path]
ALL = [row.name for row in ROWS]
WRITING = {"cache = no cache", "the future is unseen", "beam 1 = greedy"}
READING = {"padded = unpadded = packed", "text = tokens = text"}


QUANTISED = "quantised = dequantised"


def left_out(kind: str) -> set[str]:
    if kind in ("translator", "relative", "bart", "language model", "window", "short"):
        return set()
    return WRITING | READING if kind == "image" else WRITING


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_model_passes(folder: Folder, kind: str) -> None:
    proofs = verify(folder(kind), "cpu")
    expected = [name for name in ALL if name not in {*left_out(kind), QUANTISED}]
    assert [one.name for one in proofs] == expected
    open_ones = {one.name: one.note for one in proofs if one.passed is not True}
    export = open_ones.pop("export = transformers")
    assert export == "transformers is not installed here"
    if kind == "embed":
        assert "larger batches are another task" in open_ones.pop("accumulated = one batch")
    assert open_ones == {}
    for one in proofs:
        assert one.meaning.endswith(".")
        assert one.passed is None or (one.difference is not None and one.difference <= one.limit)


@pytest.mark.parametrize(
    "different",
    [
        {"pad_id": 9999, "eos_id": 9999},  # as small GPT-2s say that they have neither
        {"max_length": 2},
    ],
    ids=str,
)
def test_a_decoder_that_is_odd_but_sound_passes(tmp_path: Path, different: dict[str, int]) -> None:
    folder = folder_of(KINDS["language model"](), tmp_path)
    content = json.loads((folder / "config.json").read_text())
    content["model"] |= different
    (folder / "config.json").write_text(json.dumps(content))
    proofs = verify(folder, "cpu")
    assert {one.name: one.note for one in proofs if one.passed is False} == {}


def test_a_model_that_has_nothing_to_learn_passes(tmp_path: Path) -> None:
    proofs = verify(folder_of(classifier(("all",)), tmp_path), "cpu")
    assert {one.name: one.note for one in proofs if one.passed is False} == {}


def test_it_can_be_called_by_its_room_and_tells_of_each_row(folder: Folder) -> None:
    told: list[tuple[str, int, int]] = []
    path, state = folder("image"), torch.get_rng_state()
    proofs = qkv.verify(path, device="cpu", progress=lambda *row: told.append(row))
    assert told == [(one.name, at, len(proofs)) for at, one in enumerate(proofs)]
    assert all(isinstance(one, Proof) for one in proofs)
    assert torch.equal(torch.get_rng_state(), state)
    assert qkv.verify(path, "cpu") == proofs


def test_a_large_model_is_compared_in_float32_and_not_trained(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.proofs.model_under_test.SMALL", 0)
    proofs = {one.name: one for one in verify(folder("language model"), "cpu")}
    assert proofs["cache = no cache"].limit == 1e-4
    assert 0 < (proofs["cache = no cache"].difference or 0) < 1e-5
    assert all(one.passed in (True, None) for one in proofs.values())
    monkeypatch.setattr("qkv.proofs.learning.MOST", 100)
    proofs = {one.name: one for one in verify(folder("language model"), "cpu")}
    for name in ("accumulated = one batch", "resumed = uninterrupted"):
        assert proofs[name].passed is None
        assert "left out, for training" in proofs[name].note


def test_weights_that_are_no_numbers_fail(tmp_path: Path) -> None:
    broken = translator()
    with torch.no_grad():
        broken.model.encoder.blocks[0].feed_forward.inner.weight[0, 0] = float("nan")
    proofs = {one.name: one for one in verify(folder_of(broken, tmp_path / "nan"), "cpu")}
    assert proofs["fast path = equation path"].passed is False
    assert proofs["fast path = equation path"].difference is None
    assert "not finite" in proofs["fast path = equation path"].note
    assert proofs["resumed = uninterrupted"].passed is False


def test_mistakes(folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a model folder"):
        verify(tmp_path)
    with pytest.raises(UserError, match="Unknown device"):
        verify(folder("image"), "abacus")


@pytest.mark.usefixtures("no_transformers")
@pytest.mark.parametrize("kind", ["translator", "language model", "class", "image"])
def test_quantised_weights_are_compared_with_their_floats(
    folder: Folder, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qkv.model.quantized import Int8Linear

    proofs = {one.name: one for one in verify(folder(kind), "cpu", dtype="int8")}
    assert all(one.passed is not False for one in proofs.values())
    assert 0 < (proofs[QUANTISED].difference or 0) < 0.1
    right = Int8Linear.forward
    monkeypatch.setattr(Int8Linear, "forward", lambda layer, x: -right(layer, x))
    proofs = {one.name: one for one in verify(folder(kind), "cpu", dtype="int8")}
    assert [one.name for one in proofs.values() if one.passed is False] == [QUANTISED]
