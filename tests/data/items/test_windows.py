from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data import IGNORE, Batch, Specials, Stream, Tokens, WindowItems, validation_batches

SPECIAL = Specials(pad=0, bos=2, eos=3)
Documents = list[list[int]]
Prediction = tuple[tuple[int, ...], int]
"""What is seen of the text, the input itself last, and the label."""
DOCUMENTS = st.lists(st.lists(st.integers(4, 99), min_size=1, max_size=12), min_size=1, max_size=8)
SIZES = st.tuples(st.integers(1, 9), st.integers(1, 4))  # length, rows
FLAGS = st.tuples(st.booleans(), st.booleans())  # bos, across


def numbered(documents: Documents, bos: bool) -> list[tuple[int, int]]:
    """Each token with the number of its document."""
    return [
        (id, number)
        for number, ids in enumerate(documents)
        for id in [*([SPECIAL.bos] if bos else []), *ids, SPECIAL.eos]
    ]


def expected_of(
    windows: Iterable[Sequence[tuple[int, int]]], bos: bool, across: bool
) -> list[Prediction]:
    """The predictions of windows, by the rule and nothing else."""
    found: list[Prediction] = []
    for window in windows:
        for position, (label, number) in enumerate(window[1:], 1):
            before = window[:position]
            if before[-1][1] != number and (bos or not across):
                continue  # the first token of another document
            seen = [id for id, document in before if across or document == before[-1][1]]
            found.append((tuple(seen), label))
    return found


def predictions_of(batch: Batch) -> list[Prediction]:
    """For each label that counts, which inputs attention may see."""
    side, found = batch.target, []
    tokens, labels = side.tokens.tolist(), batch.labels.tolist()
    for row, column in zip(*np.nonzero((batch.labels != IGNORE).numpy()), strict=True):
        if side.offsets is not None:
            first = max(offset for offset in side.offsets.tolist() if offset <= column)
        else:
            first = 0 if side.first is None else int(side.first[row, column])
        found.append((tuple(tokens[row][first : column + 1]), labels[row][column]))
    assert batch.n_labels == len(found)
    return found


@given(DOCUMENTS, SIZES, FLAGS)
@pytest.mark.parametrize("packed", [False, True])
def test_validation_predicts_each_token_once(
    packed: bool, documents: Documents, size: tuple[int, int], flags: tuple[bool, bool]
) -> None:
    (length, rows), (bos, across) = size, flags
    text = numbered(documents, bos)
    tokens = Tokens.of(documents, SPECIAL, bos)
    items = WindowItems(tokens, SPECIAL, length, across=across, in_order=True)
    batches = list(validation_batches(items, rows * length, packed))
    windows = [text[start : start + length + 1] for start in range(0, len(text) - 1, length)]
    found = [prediction for batch in batches for prediction in predictions_of(batch)]
    assert found == expected_of(windows, bos, across)
    for batch in batches:
        side = batch.target
        assert batch.source is side.lengths is None and side.longest == length
        assert (side.offsets is not None) == (packed and not across)
        assert (side.first is not None) == (not packed and not across)
        if side.offsets is not None:  # padding is in a segment too, and none is too long
            assert (side.offsets[0], side.offsets[-1]) == (0, side.tokens.numel())
            assert side.offsets.diff().min() >= 0 and side.offsets.diff().max() <= length


@given(DOCUMENTS, SIZES, FLAGS, st.integers(0, 5))
@pytest.mark.parametrize("packed", [False, True])
@settings(max_examples=40)
def test_training_goes_through_windows_from_every_offset(
    packed: bool, documents: Documents, size: tuple[int, int], flags: tuple[bool, bool], seed: int
) -> None:
    (length, rows), (bos, across) = size, flags
    text = numbered(documents, bos)
    items = WindowItems(
        Tokens.of(documents, SPECIAL, bos), SPECIAL, length, across=across, seed=seed
    )
    # Over a cycle of epochs, each offset comes once: go through `rows` cycles.
    starts = items.starts(np.arange(len(items) * items.n_phases)).tolist()
    assert len(set(starts)) == len(starts)
    assert {start % length for start in starts} == set(range(items.n_phases))
    stream = Stream(items, rows * length, packed=packed, seed=seed)
    batches = [step[0] for step in islice(stream.steps_from(), len(starts))]
    found = Counter(prediction for batch in batches for prediction in predictions_of(batch))
    windows = [text[start : start + length + 1] for start in starts]
    once = Counter(expected_of(windows, bos, across))
    assert found == Counter({prediction: n * rows for prediction, n in once.items()})
    assert len({batch.target.tokens.shape for batch in batches}) == 1


@given(DOCUMENTS, st.integers(2, 9))
def test_a_packed_shape_has_room_for_the_densest_window_and_little_more(
    documents: Documents, length: int
) -> None:
    tokens = Tokens.of(documents, SPECIAL, bos=False)
    n_segments = WindowItems(tokens, SPECIAL, length).packed_shape(8 * length).sequences
    numbers = [number for _, number in numbered(documents, bos=False)]
    parts = [len({*numbers[start : start + length]}) for start in range(len(numbers))]
    assert 8 * max(parts) <= n_segments <= 8 * (max(parts) + 1)


@pytest.mark.parametrize("packed", [False, True])
def test_a_text_that_is_shorter_than_a_window_is_one_padded_window(packed: bool) -> None:
    tokens = Tokens.of([[5, 6], [7]], SPECIAL)  # 2 5 6 3, 2 7 3
    for length in (7, 12):
        stream = Stream(WindowItems(tokens, SPECIAL, length), 2 * length, packed=packed)
        for step in islice(stream.steps_from(), 3):
            ids = step[0].target.tokens.view(2, length)
            assert ids.tolist() == [[2, 5, 6, 3, 2, 7, 3] + [0] * (length - 7)] * 2
            labels = step[0].labels.view(2, length)
            assert labels.tolist() == [[5, 6, 3, IGNORE, 7, 3] + [IGNORE] * (length - 6)] * 2


def test_where_bos_and_eos_are_one_token_only_the_start_is_not_predicted() -> None:
    special = Specials(pad=0, bos=3, eos=3)
    items = WindowItems(Tokens.of([[5], [6]], special), special, 5, across=True, in_order=True)
    batch = items.batch(np.array([0]))  # 3 5 3, 3 6 3
    assert batch.labels.tolist() == [[5, 3, IGNORE, 6, 3]]
