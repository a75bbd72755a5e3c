from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data import (
    IGNORE,
    Batch,
    Specials,
    Tokens,
    WindowMode,
    WindowStream,
    prefetch,
    window_batches,
)

SPECIAL = Specials(pad=0, bos=2, eos=3)
MODES: list[WindowMode] = ["rows", "packed"]
Documents = list[list[int]]
Example = tuple[tuple[int, ...], int]
"""What is seen of the text, the input itself last, and the label."""

documents_of = st.lists(
    st.lists(st.integers(4, 99), min_size=1, max_size=12), min_size=1, max_size=8
)
sizes = st.tuples(st.integers(1, 9), st.integers(1, 4))  # length, rows
flags = st.tuples(st.booleans(), st.booleans())  # bos, across


def flat(documents: Documents, bos: bool) -> list[tuple[int, int]]:
    """Each token with the number of its document."""
    return [
        (id, number)
        for number, ids in enumerate(documents)
        for id in [*([SPECIAL.bos] if bos else []), *ids, SPECIAL.eos]
    ]


def expected_of(window: Sequence[tuple[int, int]], bos: bool, across: bool) -> list[Example]:
    """The examples of a window and the label after it, by the rule and nothing else."""
    found: list[Example] = []
    for place, (label, number) in enumerate(window[1:], 1):
        before = window[:place]
        if before[-1][1] != number and (bos or not across):
            continue  # the first token of another document
        seen = [id for id, other in before if across or other == before[-1][1]]
        found.append((tuple(seen), label))
    return found


def examples_of(batch: Batch) -> list[Example]:
    """What a batch says: for each label that counts, which inputs attention may see."""
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


def shape_of(batch: Batch) -> tuple[object, ...]:
    side = batch.target
    others = [None if part is None else part.shape for part in (side.offsets, side.first)]
    return side.tokens.shape, batch.labels.shape, side.longest, *others


def check_layout(batch: Batch, length: int, rows: int, mode: WindowMode, across: bool) -> None:
    side = batch.target
    assert batch.source is None
    assert side.lengths is None
    assert side.longest == length
    assert side.tokens.dtype == batch.labels.dtype == torch.int64
    packed = mode == "packed" and not across
    assert (
        side.tokens.shape
        == batch.labels.shape
        == ((1, rows * length) if packed else (rows, length))
    )
    assert (side.offsets is not None) == packed
    assert (side.first is not None) == (mode == "rows" and not across)
    if side.offsets is not None:
        offsets = side.offsets
        assert offsets.dtype == torch.int32
        assert (len(offsets) - 1) % 8 == 0
        assert (offsets[0], offsets[-1]) == (0, rows * length)  # padding lies in a segment too
        assert (offsets.diff() >= 0).all()
        assert offsets.diff().max() <= length
        assert set(range(0, rows * length, length)) <= set(offsets.tolist())
    if side.first is not None:
        assert side.first.dtype == torch.int64
        assert (side.first <= torch.arange(length)).all()


def count(batches: Iterable[Batch]) -> Counter[Example]:
    return Counter(example for batch in batches for example in examples_of(batch))


@given(documents_of, sizes, flags)
@pytest.mark.parametrize("mode", MODES)
def test_validation_predicts_each_token_once(
    mode: WindowMode, documents: Documents, size: tuple[int, int], flag: tuple[bool, bool]
) -> None:
    (length, rows), (bos, across) = size, flag
    stream = flat(documents, bos)
    tokens = Tokens.of(documents, SPECIAL, bos)
    batches = window_batches(tokens, SPECIAL, length, rows, mode, across)
    expected: list[Example] = []
    for start in range(0, len(stream) - 1, length):
        expected += expected_of(stream[start : start + length + 1], bos, across)
    found = [example for batch in batches for example in examples_of(batch)]
    assert found == expected
    assert len(list(batches)) == len(batches)  # and again
    assert len({shape_of(batch) for batch in batches}) == 1
    for batch in batches:
        check_layout(batch, length, rows, mode, across)


@given(documents_of, sizes, flags, st.integers(1, 3), st.integers(0, 5))
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40)
def test_training_goes_through_whole_windows_from_every_phase(
    mode: WindowMode,
    documents: Documents,
    size: tuple[int, int],
    flag: tuple[bool, bool],
    accumulate: int,
    seed: int,
) -> None:
    (length, rows), (bos, across) = size, flag
    text = flat(documents, bos)
    tokens = Tokens.of(documents, SPECIAL, bos)
    stream = WindowStream(tokens, SPECIAL, length, rows, mode, across, accumulate, seed)
    # Over a cycle, each place at which a window can begin comes once; go through `rows` of them.
    windows = [text[start : start + length + 1] for start in range(max(1, len(text) - length))]
    expected = Counter(
        {key: n * rows * accumulate for key, n in _examples(windows, bos, across).items()}
    )
    steps = list(islice(stream.steps_from(), len(windows)))
    assert all(len(step) == accumulate for step in steps)
    batches = [batch for step in steps for batch in step]
    assert count(batches) == expected
    assert len({shape_of(batch) for batch in batches}) == 1
    for batch in batches:
        check_layout(batch, length, rows, mode, across)


def _examples(
    windows: Iterable[Sequence[tuple[int, int]]], bos: bool, across: bool
) -> Counter[Example]:
    return Counter(each for window in windows for each in expected_of(window, bos, across))


def make(n: int = 40, mean: int = 9, seed: int = 0, bos: bool = True) -> Tokens:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 2 * mean, n)
    return Tokens.of([random.integers(4, 500, k).tolist() for k in lengths], SPECIAL, bos)


def places_of(stream: WindowStream, n_steps: int) -> list[int]:
    """Where the windows begin, found by what they hold."""
    whole = stream.windows.tokens.read(0, len(stream.windows.tokens)).tolist()
    where = {tuple(whole[k : k + stream.length]): k for k in range(len(whole))}
    steps = islice(stream.steps_from(), n_steps)
    rows = [row for step in steps for batch in step for row in batch.target.tokens.tolist()]
    return [where[tuple(row)] for row in rows]


def test_an_epoch_is_all_whole_windows_side_by_side_in_random_order() -> None:
    tokens = make()
    stream = WindowStream(tokens, SPECIAL, 8, 1, "rows", False)
    places = places_of(stream, 3 * len(tokens) // 8)
    phases, orders = [], []
    for epoch in range(3):
        own = [place for step, place in enumerate(places) if stream.position(step)[0] == epoch]
        phase = min(own)
        phases.append(phase)
        orders.append([(place - phase) // 8 for place in own])
        assert sorted(own) == list(range(phase, len(tokens) - 8, 8))
        assert 0 <= phase < 8
        assert own != sorted(own)
    assert len(set(phases)) == 3
    assert orders[0] != orders[1] != orders[2]


def test_seeds_give_other_orders() -> None:
    tokens = make()
    orders = [
        places_of(WindowStream(tokens, SPECIAL, 8, 2, "rows", False, seed=seed), 10)
        for seed in (0, 1, 0)
    ]
    assert orders[0] == orders[2] != orders[1]


def assert_equal(one: Batch, other: Batch) -> None:
    assert one.n_labels == other.n_labels
    assert torch.equal(one.labels, other.labels)
    assert torch.equal(one.target.tokens, other.target.tokens)
    for mine, theirs in (
        (one.target.offsets, other.target.offsets),
        (one.target.first, other.target.first),
    ):
        assert (mine is None) == (theirs is None)
        assert mine is None or theirs is None or torch.equal(mine, theirs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("length", "rows", "accumulate"), [(8, 3, 1), (5, 4, 3), (300, 2, 2)])
def test_resuming_at_any_step_is_exact(
    mode: WindowMode, length: int, rows: int, accumulate: int
) -> None:
    def stream() -> WindowStream:
        return WindowStream(make(30), SPECIAL, length, rows, mode, False, accumulate, seed=3)

    n_steps = 60
    unbroken = list(islice(stream().steps_from(), n_steps))
    assert stream().position(n_steps)[0] > 2
    for step in range(n_steps):
        for one, other in zip(unbroken[step], next(stream().steps_from(step)), strict=True):
            assert_equal(one, other)
    resumed = list(islice(stream().steps_from(17), n_steps - 17))
    for before, after in zip(unbroken[17:], resumed, strict=True):
        for one, other in zip(before, after, strict=True):
            assert_equal(one, other)


def test_a_step_far_away_costs_no_more_than_the_first() -> None:
    stream = WindowStream(make(3), SPECIAL, 7, 4, "rows", True)
    for step in (10**6, 10**9, 10**15):
        epoch, index = stream.position(step)
        n_windows = [len(range(phase, stream.n_places, 7)) for phase in range(7)]
        assert epoch == pytest.approx(4 * step / np.mean(n_windows), rel=0.01, abs=7)
        assert 0 <= index < max(n_windows)
        assert next(stream.steps_from(step))[0].labels.shape == (4, 7)


def test_packed_says_the_same_as_rows() -> None:
    tokens = make(60)
    rows, packed = (WindowStream(tokens, SPECIAL, 16, 4, mode, False) for mode in MODES)
    for one, other in zip(islice(rows.steps_from(), 30), packed.steps_from(), strict=False):
        assert examples_of(one[0]) != []
        first = [example for batch in one for example in examples_of(batch)]
        assert first == [example for batch in other for example in examples_of(batch)]


@pytest.mark.parametrize("scanned", [7, 1 << 24])
@given(documents_of, st.integers(2, 9))
def test_segments_are_as_many_as_the_densest_window_may_have(
    scanned: int, documents: Documents, length: int
) -> None:
    tokens = Tokens.of(documents, SPECIAL, bos=False)
    stream = WindowStream(tokens, SPECIAL, length, 8, "packed", False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkv.data.windows.SCANNED", scanned)
        found = stream.windows.n_segments
    numbers = [number for _, number in flat(documents, bos=False)]
    parts = [len({*numbers[start : start + length]}) for start in range(len(numbers))]
    assert 8 * max(parts) <= found <= 8 * (max(parts) + 1)


def test_a_very_short_document_among_many_takes_no_room() -> None:
    long = [[7] * 50 for _ in range(40)]
    tokens = Tokens.of([*long[:20], [8], *long[20:]], SPECIAL)
    stream = WindowStream(tokens, SPECIAL, 100, 8, "packed", False)
    assert stream.windows.n_segments <= 8 * 5
    assert next(stream.steps_from())[0].target.offsets is not None


@pytest.mark.parametrize("mode", MODES)
def test_a_text_that_is_shorter_than_a_window_is_one_padded_window(mode: WindowMode) -> None:
    tokens = Tokens.of([[5, 6], [7]], SPECIAL)  # 2 5 6 3, 2 7 3
    for length in (7, 12):
        stream = WindowStream(tokens, SPECIAL, length, 2, mode, False)
        for step in islice(stream.steps_from(), 3):
            ids = step[0].target.tokens.view(2, length)
            assert ids.tolist() == [[2, 5, 6, 3, 2, 7, 3] + [0] * (length - 7)] * 2
            labels = step[0].labels.view(2, length)
            missing = [IGNORE] * (length - 6)
            assert labels.tolist() == [[5, 6, 3, IGNORE, 7, 3, *missing]] * 2
            assert step[0].n_labels == 10


def test_a_window_that_begins_within_a_document_sees_what_it_has_of_it() -> None:
    tokens = Tokens.of([[5, 6, 7, 8], [9]], SPECIAL)  # 2 5 6 7 8 3, 2 9 3
    part = replace(tokens, begin=2)
    batch = next(iter(window_batches(part, SPECIAL, 6, 1, "rows", False)))
    assert batch.target.tokens.tolist() == [[6, 7, 8, 3, 2, 9]]
    assert batch.labels.tolist() == [[7, 8, 3, IGNORE, 9, 3]]
    assert batch.target.first is not None
    assert batch.target.first.tolist() == [[0, 0, 0, 0, 4, 4]]


def test_where_bos_and_eos_are_one_token_only_the_start_is_not_asked_for() -> None:
    special = Specials(pad=0, bos=3, eos=3)
    tokens = Tokens.of([[5], [6]], special)  # 3 5 3, 3 6 3
    batch = next(iter(window_batches(tokens, special, 5, 1, "rows", True)))
    assert batch.labels.tolist() == [[5, 3, IGNORE, 6, 3]]


def test_batches_can_be_made_ahead_in_a_thread() -> None:
    stream = WindowStream(make(), SPECIAL, 8, 2, "packed", False)
    ahead = prefetch(islice(stream.steps_from(), 20), lambda step: step)
    for one, other in zip(ahead, stream.steps_from(), strict=False):
        assert_equal(one[0], other[0])


def test_a_single_token_has_nothing_to_predict() -> None:
    with pytest.raises(ValueError, match="at least two tokens"):
        WindowStream(replace(make(), end=1), SPECIAL, 8, 1, "rows", False)
    assert len(window_batches(replace(make(), end=1), SPECIAL, 8, 1, "rows", False)) == 0
