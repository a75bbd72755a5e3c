from collections.abc import Callable

import numpy as np
import pytest
import torch

from qkv.data import (
    IGNORE,
    Batch,
    EncodedPairs,
    PackedShape,
    Ragged,
    Side,
    Specials,
    packed_batch,
    packed_shape,
    padded_batch,
)

MakePairs = Callable[..., EncodedPairs]
SPECIAL = Specials(pad=0, bos=2, eos=3)
PAIRS = EncodedPairs(Ragged.of([[11, 12, 13], [14]]), Ragged.of([[21], [22, 23]]))
SHAPE = PackedShape(source_tokens=10, target_tokens=12, sequences=6, longest=4)


def test_padded_input_and_labels_are_the_target_shifted_by_one() -> None:
    batch = padded_batch(PAIRS, [0, 1], SPECIAL)
    assert batch.source.tokens.tolist() == [[11, 12, 13, 3], [14, 3, 0, 0]]
    assert batch.target.tokens.tolist() == [[2, 21, 0], [2, 22, 23]]
    assert batch.labels.tolist() == [[21, 3, IGNORE], [22, 23, 3]]
    assert batch.source.lengths is not None
    assert batch.target.lengths is not None
    assert batch.source.lengths.tolist() == [4, 2]
    assert batch.target.lengths.tolist() == [2, 3]
    assert (batch.source.longest, batch.target.longest, batch.n_labels) == (4, 3, 5)
    assert batch.source.tokens.dtype == batch.labels.dtype == torch.int64


def test_padding_can_go_to_a_multiple() -> None:
    batch = padded_batch(PAIRS, [1], SPECIAL, multiple=8)
    assert batch.source.tokens.tolist() == [[14, 3, 0, 0, 0, 0, 0, 0]]
    assert batch.labels.tolist() == [[22, 23, 3] + [IGNORE] * 5]


def test_packed_sequences_lie_end_to_end_before_filler_and_empty_segments() -> None:
    batch = packed_batch(PAIRS, [0, 1], SPECIAL, SHAPE)
    assert batch.source.tokens.tolist() == [[11, 12, 13, 3, 14, 3, 0, 0, 0, 0]]
    assert batch.target.tokens.tolist() == [[2, 21, 2, 22, 23, 0, 0, 0, 0, 0, 0, 0]]
    assert batch.labels.tolist() == [[21, 3, 22, 23, 3] + [IGNORE] * 7]
    assert batch.source.offsets is not None
    assert batch.target.offsets is not None
    assert batch.source.offsets.tolist() == [0, 4, 6, 10, 10, 10, 10]
    assert batch.target.offsets.tolist() == [0, 2, 5, 9, 12, 12, 12]
    assert (batch.source.longest, batch.target.longest, batch.n_labels) == (4, 4, 5)
    assert batch.source.offsets.dtype == torch.int32


def test_a_full_side_needs_no_filler() -> None:
    shape = PackedShape(source_tokens=6, target_tokens=5, sequences=2, longest=4)
    batch = packed_batch(PAIRS, [0, 1], SPECIAL, shape)
    assert batch.source.offsets is not None
    assert batch.source.offsets.tolist() == [0, 4, 6]
    assert IGNORE not in batch.labels


@pytest.mark.parametrize(
    "shape",
    [
        PackedShape(source_tokens=5, target_tokens=12, sequences=6, longest=4),
        PackedShape(source_tokens=10, target_tokens=4, sequences=6, longest=4),
        PackedShape(source_tokens=10, target_tokens=12, sequences=3, longest=4),
        PackedShape(source_tokens=10, target_tokens=12, sequences=9, longest=3),
    ],
)
def test_what_does_not_fit_the_shape_is_refused(shape: PackedShape) -> None:
    with pytest.raises(ValueError, match="overflow"):
        packed_batch(PAIRS, [0, 1], SPECIAL, shape)


def sequences(side: Side, values: torch.Tensor) -> list[list[int]]:
    """What lies in each sequence of a side."""
    if side.lengths is not None:
        return [row[:n].tolist() for row, n in zip(values, side.lengths, strict=True)]
    assert side.offsets is not None
    bounds = zip(side.offsets[:-1], side.offsets[1:], strict=True)
    return [values[0, start:end].tolist() for start, end in bounds]


def triples(batch: Batch, n: int) -> list[tuple[list[int], list[int], list[int]]]:
    sources = sequences(batch.source, batch.source.tokens)
    targets = sequences(batch.target, batch.target.tokens)
    labels = sequences(batch.target, batch.labels)
    return list(zip(sources, targets, labels, strict=True))[:n]


def test_padded_and_packed_batches_hold_the_same_sequences(make_pairs: MakePairs) -> None:
    pairs = make_pairs(50)
    indices = np.random.default_rng(1).permutation(50)[:30]
    shape = packed_shape(pairs, 1024)
    padded, packed = (
        padded_batch(pairs, indices, SPECIAL),
        packed_batch(pairs, indices, SPECIAL, shape),
    )
    assert triples(padded, 30) == triples(packed, 30)
    assert padded.n_labels == packed.n_labels == int((packed.labels != IGNORE).sum())
    for index, (source, target, labels) in zip(indices, triples(packed, 30), strict=True):
        assert source == [*pairs.source[index].tolist(), SPECIAL.eos]
        assert target == [SPECIAL.bos, *pairs.target[index].tolist()]
        assert labels == [*pairs.target[index].tolist(), SPECIAL.eos]


@pytest.mark.parametrize("n", [1, 2, 30])
def test_every_place_of_a_packed_side_lies_in_one_short_segment(
    make_pairs: MakePairs, n: int
) -> None:
    pairs = make_pairs(50)
    shape = packed_shape(pairs, 1024)
    batch = packed_batch(pairs, range(n), SPECIAL, shape)
    for side in (batch.source, batch.target):
        assert side.offsets is not None
        sizes = side.offsets.diff()
        assert len(sizes) == shape.sequences
        assert side.offsets[0] == 0
        assert side.offsets[-1] == side.tokens.shape[1]
        assert sizes.min() >= 0
        assert sizes.max() <= side.longest == shape.longest
        filler = side.tokens[0, side.offsets[n] :]
        assert (filler == SPECIAL.pad).all()


BOTH_KINDS = [padded_batch(PAIRS, [0, 1], SPECIAL), packed_batch(PAIRS, [0, 1], SPECIAL, SHAPE)]


@pytest.mark.parametrize("batch", BOTH_KINDS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_moving_keeps_everything(batch: Batch, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    moved = batch.to(torch.device(device))
    assert {moved.labels.device.type, moved.source.tokens.device.type} == {device}
    assert triples(moved, 2) == triples(batch, 2)
    assert moved.n_labels == batch.n_labels
    assert moved.source.longest == batch.source.longest
    assert (moved.places, moved.pairs, moved.opinions) == (None, None, None)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_moving_keeps_each_in_its_place(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    side = Side(torch.ones(2, 3, dtype=torch.int64), torch.tensor([3, 2]), None, 3)
    more = {"places": torch.tensor([1]), "pairs": torch.tensor([2]), "opinions": torch.rand(2, 2)}
    moved = Batch(None, side, torch.tensor([0, 1]), 2, **more).to(torch.device(device))
    for name, tensor in more.items():
        assert getattr(moved, name).device.type == device
        assert torch.equal(getattr(moved, name).cpu(), tensor), name
