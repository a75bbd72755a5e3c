from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest
import torch

from qkv.data import (
    Batch,
    BatchStream,
    EncodedPairs,
    Indices,
    Mode,
    Ragged,
    Specials,
    validation_batches,
)
from qkv.data import stream as stream_module

MakePairs = Callable[..., EncodedPairs]
SPECIAL = Specials(pad=0, bos=2, eos=3)
MODES: list[Mode] = ["padded", "packed"]


def assert_equal(one: Batch, other: Batch) -> None:
    assert one.n_labels == other.n_labels
    assert torch.equal(one.labels, other.labels)
    for mine, theirs in ((one.source, other.source), (one.target, other.target)):
        assert torch.equal(mine.tokens, theirs.tokens)
        assert mine.longest == theirs.longest
        for a, b in ((mine.lengths, theirs.lengths), (mine.offsets, theirs.offsets)):
            assert (a is None and b is None) or (
                a is not None and b is not None and torch.equal(a, b)
            )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_resuming_at_any_step_is_exact(make_pairs: MakePairs, mode: Mode, accumulate: int) -> None:
    def stream() -> BatchStream:
        return BatchStream(make_pairs(60), SPECIAL, mode, 200, accumulate, seed=4)

    n_steps = 3 * len(stream().plan(0)) // accumulate  # three epochs, or just short of it
    unbroken = list(islice(stream().steps_from(0), n_steps))
    assert stream().position(n_steps - 1)[0] == 2
    for step in range(n_steps):
        resumed = islice(stream().steps_from(step), n_steps - step)
        for one, other in zip(unbroken[step:], resumed, strict=True):
            assert len(one) == len(other) == accumulate
            for mine, theirs in zip(one, other, strict=True):
                assert_equal(mine, theirs)


def test_positions_walk_through_epochs_of_different_lengths(
    make_pairs: MakePairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = make_pairs(12)

    def plan(pairs: EncodedPairs, batch_tokens: int, seed: int, epoch: int) -> list[Indices]:
        return np.array_split(np.arange(12), [3, 1, 4][epoch % 3])

    monkeypatch.setattr(stream_module, "padded_plan", plan)
    stream = BatchStream(pairs, SPECIAL, "padded", 100)
    expected = [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0)]
    assert [stream.position(step) for step in range(9)] == expected
    by_twos = BatchStream(pairs, SPECIAL, "padded", 100, accumulate=2)
    assert [by_twos.position(step) for step in (4, 3, 2, 1, 0)] == expected[::-2]
    rows = [[len(batch.labels) for batch in step] for step in islice(by_twos.steps_from(1), 2)]
    assert rows == [[4, 12], [3, 3]]  # a step may end one epoch and begin the next


@pytest.mark.parametrize("mode", MODES)
def test_an_epoch_sees_every_label_once(make_pairs: MakePairs, mode: Mode) -> None:
    pairs = make_pairs(200)
    stream = BatchStream(pairs, SPECIAL, mode, 256)
    epoch = [step[0] for step in islice(stream.steps_from(), len(stream.plan(0)))]
    assert sum(batch.n_labels for batch in epoch) == pairs.target_sizes.sum()


def test_packed_batches_all_have_one_shape(make_pairs: MakePairs) -> None:
    stream = BatchStream(make_pairs(200), SPECIAL, "packed", 256)
    batches = [step[0] for step in islice(stream.steps_from(), 40)]
    shapes = {
        (side.tokens.shape, side.offsets.shape, side.longest)
        for batch in batches
        for side in (batch.target,)
        if side.offsets is not None
    }
    assert len(shapes) == 1
    assert len({batch.source.tokens.shape for batch in batches}) == 1


def test_skipping_assembles_nothing(make_pairs: MakePairs, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = BatchStream(make_pairs(60), SPECIAL, "padded", 200)
    assembled = []
    monkeypatch.setattr(
        BatchStream, "assemble", lambda self, indices, place: assembled.append(indices)
    )
    next(stream.steps_from(17))
    assert len(assembled) == 1


def test_an_empty_corpus_is_refused_instead_of_planned_for_ever() -> None:
    with pytest.raises(ValueError, match="something to make batches of"):
        BatchStream(EncodedPairs(Ragged.of([]), Ragged.of([])), SPECIAL, "padded", 8)


def test_validation_batches_hold_every_pair_and_never_change(make_pairs: MakePairs) -> None:
    pairs = make_pairs(100)
    batches = validation_batches(pairs, 256, SPECIAL)
    assert sum(len(batch.labels) for batch in batches) == 100
    assert sum(batch.n_labels for batch in batches) == pairs.target_sizes.sum()
    for one, other in zip(batches, validation_batches(pairs, 256, SPECIAL), strict=True):
        assert_equal(one, other)
