"""Framed sequences with labels: every label reaches its sequence, or its token, in every batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.data import (
    IGNORE,
    Batch,
    Framed,
    Ragged,
    Sequences,
    SequenceStream,
    Specials,
    Twins,
    TwinStream,
    frame,
    sequence_batches,
    twin_batches,
)
from qkv.data.batch import PackedShape, in_segments
from qkv.data.sequences import padded_sequences, padded_twins, side

PAD, BOS, EOS = 0, 2, 3
SPECIAL = Specials(PAD, BOS, EOS)


def test_one_text_stands_between_bos_and_eos() -> None:
    assert frame([7, 8, 9], None, SPECIAL) == Framed([BOS, 7, 8, 9, EOS], [0] * 5)
    assert frame([], None, SPECIAL) == Framed([BOS, EOS], [0, 0])
    assert frame([7], None, SPECIAL, separators=2) == frame([7], None, SPECIAL)


def test_a_pair_has_so_many_eos_between_and_one_at_the_end() -> None:
    """As BERT, [CLS] a [SEP] b [SEP] with 0s up to the first [SEP]; RoBERTa has two, and no 1s."""
    bert = frame([7, 8], [9], SPECIAL)
    assert bert == Framed([BOS, 7, 8, EOS, 9, EOS], [0, 0, 0, 0, 1, 1])
    roberta = frame([7, 8], [9], SPECIAL, separators=2)
    assert roberta == Framed([BOS, 7, 8, EOS, EOS, 9, EOS], [0, 0, 0, 0, 0, 0, 0])
    assert frame([], [], SPECIAL) == Framed([BOS, EOS, EOS], [0, 0, 1])


def some(lengths: Sequence[int], seed: int = 1) -> list[Framed]:
    draw = np.random.default_rng(seed)
    return [
        frame(draw.integers(4, 99, n).tolist(), [5] * (n % 3) if n % 2 else None, SPECIAL)
        for n in lengths
    ]


def by_token(framed: Sequence[Framed], seed: int = 2) -> Any:
    """A label of its own for about half of the tokens."""
    draw = np.random.default_rng(seed)
    size = sum(len(one.tokens) for one in framed)
    return np.where(draw.random(size) < 0.5, np.arange(size), IGNORE)


def test_a_row_holds_a_sequence_its_segments_and_then_padding() -> None:
    framed = [frame([7], [8, 9], SPECIAL), frame([6], None, SPECIAL)]
    batch = padded_sequences(Sequences.of(framed, np.array([4, 5])), [1, 0], SPECIAL)
    assert batch.target.tokens.tolist() == [[BOS, 6, EOS, PAD, PAD, PAD], [BOS, 7, EOS, 8, 9, EOS]]
    assert batch.target.segments.tolist() == [[0] * 6, [0, 0, 0, 1, 1, 1]]
    assert batch.target.lengths.tolist() == [3, 6]
    assert batch.target.longest == 6
    assert (batch.source, batch.places, batch.pairs) == (None, None, None)
    assert batch.labels.tolist() == [5, 4]
    assert batch.n_labels == 2


def test_labels_may_be_several_a_sequence() -> None:
    labels = np.arange(8, dtype=np.float32).reshape(4, 2)
    batch = padded_sequences(Sequences.of(some([1, 2, 3, 4]), labels), [3, 1], SPECIAL)
    assert batch.labels.tolist() == [[6, 7], [2, 3]]
    assert batch.n_labels == 2


def test_labels_must_fit() -> None:
    framed = some([3, 4])
    with pytest.raises(ValueError, match="2 labels are needed, but there are 3"):
        Sequences.of(framed, np.zeros(3))
    size = sum(len(one.tokens) for one in framed)
    with pytest.raises(ValueError, match=f"{size} labels are needed, but there are 2"):
        Sequences.of(framed, np.zeros(2), by_token=True)


def opined(framed: Sequence[Framed]) -> Sequences:
    """Sequences whose labels and opinions both say the sequence's own number."""
    numbers = np.arange(len(framed))
    opinions = np.stack([numbers, -numbers], axis=1).astype(np.float32)
    return replace(Sequences.of(framed, numbers), opinions=opinions)


def test_opinions_go_with_their_sequences() -> None:
    sequences = opined(some([3, 1, 4, 1, 5]))
    taken = sequences.take([4, 0, 0])
    assert taken.opinions.tolist() == [[4, -4], [0, 0], [0, 0]]
    batch = padded_sequences(taken.take([1, 0]), [1, 0], SPECIAL)
    assert batch.opinions.tolist() == [[4, -4], [0, 0]]
    assert batch.opinions.dtype == torch.float32
    assert batch.labels.tolist() == [4, 0]


def test_every_batch_has_its_own_opinions() -> None:
    items = opined(some(np.random.default_rng(7).integers(0, 20, 50).tolist()))
    made = SequenceStream(items, SPECIAL, "padded", 120, seed=3)
    batches = [*sequence_batches(items, 120, SPECIAL), *chain(*islice(made.steps_from(), 20))]
    for batch in batches:
        assert batch.opinions[:, 0].tolist() == batch.labels.tolist()
    assert len({len(batch.labels) for batch in batches}) > 3


def test_who_has_no_opinions_gets_none() -> None:
    framed = some([3, 4])
    assert Sequences.of(framed, np.zeros(2)).take([1]).opinions is None
    assert padded_sequences(Sequences.of(framed, np.zeros(2)), [0], SPECIAL).opinions is None


LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@given(LENGTHS, st.data())
def test_taking_some_copies_out_these_in_that_order(
    lengths: list[int], data: st.DataObject
) -> None:
    framed = some(lengths)
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1))
    whole = Sequences.of(framed, by_token(framed), by_token=True)
    taken = whole.take(chosen)
    expected = [(framed[i].tokens, framed[i].segments) for i in chosen]
    found = [(taken.tokens[i].tolist(), taken.segments[i].tolist()) for i in range(len(taken))]
    assert found == expected
    starts = whole.tokens.offsets
    labels = [whole.labels[starts[i] : starts[i + 1]].tolist() for i in chosen]
    assert taken.labels.tolist() == list(chain(*labels))
    assert taken.target_sizes.tolist() == [len(framed[i].tokens) for i in chosen]
    assert not taken.source_sizes.any()


@given(LENGTHS, st.data())
def test_labels_go_with_their_tokens_wherever_these_lie(
    lengths: list[int], data: st.DataObject
) -> None:
    """The label of each token is its number in the corpus, so that none can stand for another."""
    framed = some(lengths)
    sequences = Sequences.of(framed, by_token(framed), by_token=True)
    chosen = data.draw(st.permutations(range(len(lengths))))
    batch = padded_sequences(sequences, chosen, SPECIAL)
    flat = batch.target.tokens.flatten()[batch.places]
    assert flat.tolist() == sequences.tokens.tokens[batch.labels.numpy()].tolist()
    assert sorted(batch.labels.tolist()) == [label for label in sequences.labels if label >= 0]
    assert batch.n_labels == len(batch.labels) == len(batch.places)
    width = batch.target.tokens.shape[1]
    rows, columns = batch.places // width, batch.places % width
    assert (columns < batch.target.lengths[rows]).all()


def test_packed_sequences_keep_their_bounds_and_segments() -> None:
    framed = some([3, 1, 4])
    sequences = Sequences.of(framed, np.zeros(3))
    shape = PackedShape(0, 32, 8, 16)
    layout = in_segments(sequences.target_sizes, 32, shape)
    laid = side(sequences.tokens, sequences.segments, layout, PAD)
    bounds = laid.offsets.tolist()
    for number, one in enumerate(framed):
        part = slice(bounds[number], bounds[number + 1])
        assert laid.tokens[0, part].tolist() == one.tokens
        assert laid.segments[0, part].tolist() == one.segments
    assert laid.lengths is None
    assert not laid.tokens[0, bounds[3] :].any()


def signature(batch: Batch) -> list[Any]:
    return [batch.target.tokens.tolist(), batch.labels.tolist(), batch.n_labels]


def stream(seed: int = 0, **more: Any) -> SequenceStream:
    draw = np.random.default_rng(7)
    framed = some(draw.integers(0, 20, 50).tolist())
    sequences = Sequences.of(framed, np.arange(50))
    return SequenceStream(sequences, SPECIAL, "padded", 120, seed=seed, **more)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_stream_goes_on_from_any_step_as_it_would_have(accumulate: int) -> None:
    def steps(start: int, count: int) -> list[Any]:
        made = stream(accumulate=accumulate)  # a process that was started again knows nothing
        return [list(map(signature, step)) for step in islice(made.steps_from(start), count)]

    whole = steps(0, 30)
    for start in (1, 5, 17, 29):
        assert steps(start, 30 - start) == whole[start:]
    assert stream().position(29)[0] >= 2  # over the borders of epochs


def test_an_epoch_has_each_sequence_once_within_the_budget_and_another_order_each_time() -> None:
    made = stream()
    orders = []
    for epoch in (0, 1):
        batches = [made.assemble(part, (epoch, n)) for n, part in enumerate(made.plan(epoch))]
        assert all(batch.target.tokens.numel() <= 120 for batch in batches)
        orders.append([label for batch in batches for label in batch.labels.tolist()])
        assert sorted(orders[-1]) == list(range(50))
    assert orders[0] != orders[1]
    assert signature(next(stream(seed=1).steps_from())[0]) != signature(next(made.steps_from())[0])


def test_validation_batches_are_all_sequences_and_always_the_same() -> None:
    items = stream().items
    batches = sequence_batches(items, 120, SPECIAL)
    assert sorted(chain(*(batch.labels.tolist() for batch in batches))) == list(range(50))
    again = sequence_batches(items, 120, SPECIAL)
    assert list(map(signature, batches)) == list(map(signature, again))
    widths = [batch.target.tokens.shape[1] for batch in batches]
    assert widths == sorted(widths)


def twins(n: int = 20) -> Twins:
    draw = np.random.default_rng(5)
    first, second = (some(draw.integers(0, 12, n).tolist(), seed) for seed in (1, 2))
    return Twins(
        Ragged.of([one.tokens for one in first]),
        Ragged.of([one.tokens for one in second]),
        np.arange(n) // 2,
    )


def test_twins_stand_in_the_same_row_of_both_sides() -> None:
    items = twins()
    batch = padded_twins(items, [7, 0, 12], SPECIAL)
    assert batch.labels.tolist() == [3, 0, 6]
    for laid, texts in ((batch.source, items.first), (batch.target, items.second)):
        for row, index in enumerate([7, 0, 12]):
            n = int(laid.lengths[row])
            assert laid.tokens[row, :n].tolist() == texts[index].tolist()
            assert not laid.tokens[row, n:].any()


def test_a_stream_of_twins_goes_on_too_and_validation_has_all() -> None:
    items = twins()

    def steps(start: int, count: int) -> list[Any]:
        made = TwinStream(items, SPECIAL, "padded", 60, seed=4)
        return [
            (step[0].source.tokens.tolist(), *signature(step[0]))
            for step in islice(made.steps_from(start), count)
        ]

    assert steps(9, 6) == steps(0, 15)[9:]
    batches = twin_batches(items, 60, SPECIAL)
    groups = torch.cat([batch.labels for batch in batches])
    assert sorted(groups.tolist()) == items.groups.tolist()
    widest = (max(batch.source.tokens.numel(), batch.target.tokens.numel()) for batch in batches)
    assert max(widest) <= 60
