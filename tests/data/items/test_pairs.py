from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.config import TokenizerConfig
from qkv.data import (
    IGNORE,
    Batch,
    PackedShape,
    PairItems,
    Ragged,
    Side,
    encode_pairs,
    filter_pairs,
)
from qkv.errors import UserError
from qkv.text import train_pair
from tests.data.helpers import SPECIAL, of_lengths

MakePairs = Callable[..., PairItems]
PAIRS = PairItems(Ragged.of([[11, 12, 13], [14]]), Ragged.of([[21], [22, 23]]), SPECIAL)
SHAPE = PackedShape(source_tokens=10, target_tokens=12, sequences=6, longest=4)
BOTH = np.array([0, 1])


def test_padded_input_and_labels_are_the_target_shifted_by_one() -> None:
    batch = PAIRS.batch(BOTH)
    assert batch.source is not None
    assert batch.source.tokens.tolist() == [[11, 12, 13, 3], [14, 3, 0, 0]]
    assert batch.target.tokens.tolist() == [[2, 21, 0], [2, 22, 23]]
    assert batch.labels.tolist() == [[21, 3, IGNORE], [22, 23, 3]]
    assert batch.source.lengths.tolist() == [4, 2]
    assert batch.target.lengths.tolist() == [2, 3]
    assert (batch.source.longest, batch.target.longest, batch.n_labels) == (4, 3, 5)
    assert batch.source.tokens.dtype == batch.labels.dtype == torch.int64


def test_packed_sequences_are_end_to_end_before_filler_and_empty_segments() -> None:
    batch = PAIRS.batch(BOTH, shape=SHAPE)
    assert batch.source.tokens.tolist() == [[11, 12, 13, 3, 14, 3, 0, 0, 0, 0]]
    assert batch.target.tokens.tolist() == [[2, 21, 2, 22, 23, 0, 0, 0, 0, 0, 0, 0]]
    assert batch.labels.tolist() == [[21, 3, 22, 23, 3] + [IGNORE] * 7]
    assert batch.source.offsets.tolist() == [0, 4, 6, 10, 10, 10, 10]
    assert batch.target.offsets.tolist() == [0, 2, 5, 9, 12, 12, 12]
    assert batch.source.offsets.dtype == torch.int32
    full = PAIRS.batch(BOTH, shape=PackedShape(6, 5, sequences=2, longest=4))
    assert full.source.offsets.tolist() == [0, 4, 6]
    assert IGNORE not in full.labels


@pytest.mark.parametrize("sizes", [(5, 12, 6, 4), (10, 4, 6, 4), (10, 12, 3, 4), (10, 12, 9, 3)])
def test_what_does_not_fit_the_shape_is_refused(sizes: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="overflow"):
        PAIRS.batch(BOTH, shape=PackedShape(*sizes))


def sequences(side: Side, values: torch.Tensor) -> list[list[int]]:
    if side.lengths is not None:
        return [row[:n].tolist() for row, n in zip(values, side.lengths, strict=True)]
    return [values[0, start:end].tolist() for start, end in pairwise(side.offsets.tolist())]


def triples(batch: Batch, n: int) -> list[tuple[list[int], ...]]:
    parts = (
        sequences(batch.source, batch.source.tokens),
        sequences(batch.target, batch.target.tokens),
        sequences(batch.target, batch.labels),
    )
    return list(zip(*parts, strict=True))[:n]


def test_padded_and_packed_batches_hold_the_same_sequences(make_pairs: MakePairs) -> None:
    items = make_pairs(50)
    indices = np.random.default_rng(1).permutation(50)[:30]
    shape = items.packed_shape(1024)
    padded, packed = items.batch(indices), items.batch(indices, shape=shape)
    assert triples(padded, 30) == triples(packed, 30)
    assert padded.n_labels == packed.n_labels == int((packed.labels != IGNORE).sum())
    for index, (source, target, labels) in zip(indices, triples(packed, 30), strict=True):
        assert source == [*items.source[index].tolist(), SPECIAL.eos]
        assert target == [SPECIAL.bos, *items.target[index].tolist()]
        assert labels == [*items.target[index].tolist(), SPECIAL.eos]
    for side in (packed.source, packed.target):  # filler too is in segments that are not too long
        sizes = side.offsets.diff()
        assert len(sizes) == shape.sequences and side.offsets[-1] == side.tokens.shape[1]
        assert sizes.min() >= 0 and sizes.max() <= side.longest == shape.longest
        assert (side.tokens[0, side.offsets[30] :] == SPECIAL.pad).all()


@pytest.mark.parametrize("shape", [None, SHAPE])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_moving_keeps_everything(shape: PackedShape | None, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    batch = PAIRS.batch(BOTH, shape=shape)
    moved = batch.to(torch.device(device))
    assert {moved.labels.device.type, moved.source.tokens.device.type} == {device}
    assert triples(moved, 2) == triples(batch, 2)
    assert (moved.n_labels, moved.source.longest) == (batch.n_labels, batch.source.longest)
    assert (moved.positions, moved.pairs, moved.opinions) == (None, None, None)


def test_each_pair_is_dropped_for_the_first_reason_that_holds() -> None:
    pairs = of_lengths((3, 3), (0, 0), (0, 9), (2, 0), (9, 30), (3, 10), (1, 4), (3, 9), (9, 3))
    kept, sentence = filter_pairs(pairs, max_length=10, max_ratio=3.0)
    assert kept.rows.tolist() == [0, 7, 8]
    assert (kept.source_sizes.tolist(), kept.target_sizes.tolist()) == ([4, 4, 10], [4, 10, 4])
    assert sentence == (
        "3 of 9 pairs; dropped 2 with an empty source, 1 with an empty target, 2 too long (over 10 "
        "tokens), 1 with a length ratio over 3"
    )
    assert triples(kept.batch(np.array([1])), 1)[0][0] == [7, 7, 7, 3]
    assert filter_pairs(kept, 10, 3.0)[1] == "3 pairs"
    with pytest.raises(UserError, match=r"all 2 pairs were dropped \(2 too long \(over 4 tok"):
        filter_pairs(of_lengths((4, 4), (9, 9)), 4, 9.0)


def test_pairs_are_encoded_once_and_without_special_tokens(tmp_path: Path) -> None:
    pairs = [("ab cd", "x y"), ("", "x"), ("  ", "y"), ("ef", "z")] * 3
    both = [text for pair in pairs for text in pair]
    tokenizer, _ = train_pair(both, both, TokenizerConfig(vocab_size=300))
    items = encode_pairs(pairs, tokenizer, tokenizer, SPECIAL, first=[7])
    again = encode_pairs(pairs, tokenizer, tokenizer, SPECIAL, first=[7])
    assert items.digest == again.digest != encode_pairs(pairs[1:], tokenizer, tokenizer, SPECIAL)
    for index, (source, target) in enumerate(pairs):
        for ids, text in ((items.source[index], source), (items.target[index], target)):
            assert ids.tolist() == ([7, *tokenizer.encode(text)] if text.strip() else [])
