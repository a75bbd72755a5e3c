"""Framed sequences with labels: every label reaches its sequence, or its token, in every batch."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from qkv.data import (
    IGNORE,
    Framed,
    Ragged,
    SequenceItems,
    Specials,
    TwinItems,
    frame,
    framed_arrays,
)

PAD, BOS, EOS = 0, 2, 3
SPECIAL = Specials(PAD, BOS, EOS)


def items_of(framed: Sequence[Framed], labels: np.ndarray, **more: object) -> SequenceItems:
    arrays = framed_arrays(framed)
    tokens = Ragged.of([text.tokens for text in framed])
    return SequenceItems(tokens, arrays["segments"], labels, SPECIAL, **more)  # type: ignore[arg-type]


def test_special_tokens_stand_around_one_text_or_two() -> None:
    """As BERT, [CLS] a [SEP] b [SEP] with 0s up to the first [SEP]; RoBERTa has two, and no 1s."""
    assert frame([7, 8, 9], None, SPECIAL) == Framed([BOS, 7, 8, 9, EOS], [0] * 5)
    assert frame([7], None, SPECIAL, separators=2) == Framed([BOS, 7, EOS], [0] * 3)
    bert = frame([7, 8], [9], SPECIAL)
    assert bert == Framed([BOS, 7, 8, EOS, 9, EOS], [0, 0, 0, 0, 1, 1])
    roberta = frame([7, 8], [9], SPECIAL, separators=2)
    assert roberta == Framed([BOS, 7, 8, EOS, EOS, 9, EOS], [0] * 7)
    assert frame([], [], SPECIAL) == Framed([BOS, EOS, EOS], [0, 0, 1])


def some(lengths: Sequence[int], seed: int = 1) -> list[Framed]:
    draw = np.random.default_rng(seed)
    return [
        frame(draw.integers(4, 99, n).tolist(), [5] * (n % 3) if n % 2 else None, SPECIAL)
        for n in lengths
    ]


def test_a_row_holds_a_sequence_its_segments_and_then_padding() -> None:
    framed = [frame([7], [8, 9], SPECIAL), frame([6], None, SPECIAL)]
    opinions = np.array([[0.1, 0.9], [0.3, 0.7]], np.float32)
    items = items_of(framed, np.array([4, 5]))
    items.opinions = opinions
    batch = items.batch(np.array([1, 0]))
    assert batch.target.tokens.tolist() == [[BOS, 6, EOS, PAD, PAD, PAD], [BOS, 7, EOS, 8, 9, EOS]]
    assert batch.target.segments.tolist() == [[0] * 6, [0, 0, 0, 1, 1, 1]]
    assert (batch.target.lengths.tolist(), batch.target.longest) == ([3, 6], 6)
    assert (batch.source, batch.positions, batch.pairs) == (None, None, None)
    assert (batch.labels.tolist(), batch.n_labels) == ([5, 4], 2)
    assert np.array_equal(batch.opinions.numpy(), opinions[::-1])


def test_labels_may_be_several_a_sequence() -> None:
    labels = np.arange(8, dtype=np.float32).reshape(4, 2)
    batch = items_of(some([1, 2, 3, 4]), labels).batch(np.array([3, 1]))
    assert (batch.labels.tolist(), batch.n_labels) == ([[6, 7], [2, 3]], 2)
    assert batch.opinions is None


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.data())
def test_labels_go_with_their_tokens(lengths: list[int], data: st.DataObject) -> None:
    """The label of each token is its number in the corpus, so that none can replace another."""
    framed = some(lengths)
    size = sum(len(text.tokens) for text in framed)
    labels = np.where(np.random.default_rng(2).random(size) < 0.5, np.arange(size), IGNORE)
    items = items_of(framed, labels, by_token=True)
    batch = items.batch(np.array(data.draw(st.permutations(range(len(lengths))))))
    flat = batch.target.tokens.flatten()[batch.positions]
    assert flat.tolist() == items.tokens.tokens[batch.labels.numpy()].tolist()
    assert sorted(batch.labels.tolist()) == [label for label in labels if label >= 0]
    assert batch.n_labels == len(batch.labels) == len(batch.positions)


def test_twins_are_in_the_same_row_of_both_sides() -> None:
    first, second = (Ragged.of([text.tokens for text in some(range(12), seed)]) for seed in (1, 2))
    groups = np.stack([np.arange(12) // 2, np.arange(12) // 3], axis=1)
    batch = TwinItems(first, second, groups, SPECIAL).batch(np.array([7, 0, 11]))
    assert batch.labels.tolist() == [[3, 2], [0, 0], [5, 3]]
    for side, texts in ((batch.source, first), (batch.target, second)):
        for row, index in enumerate([7, 0, 11]):
            n = int(side.lengths[row])
            assert side.tokens[row, :n].tolist() == texts[index].tolist()
            assert not side.tokens[row, n:].any()
