"""Overlapping windows: they cover all, fit the model, tear no word, and none is for nothing."""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from qkv.data.overlaps import answer_place, most_central, windows


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    size = draw(st.integers(1, 9))
    return size, draw(st.integers(0, size // 2))


lengths_of_words = st.lists(st.integers(1, 6), max_size=12)


def cuts(words: list[int]) -> list[bool]:
    """Where windows may be cut between words of so many tokens."""
    return [place == 0 for word in words for place in range(word)]


def check(found: list[tuple[int, int]], n_tokens: int, size: int) -> None:
    """What is true of all windows: from the first token to the last, and each has news."""
    assert found[0][0] == 0 and found[-1][1] == n_tokens
    assert all(0 < end - start <= size for start, end in found)
    for (start, end), (next_start, next_end) in pairwise(found):
        assert start < next_start <= end < next_end


@given(st.integers(1, 60), sizes())
def test_windows_overlap_by_as_much_until_the_end_is_reached(
    n_tokens: int, size_overlap: tuple[int, int]
) -> None:
    size, overlap = size_overlap
    found = windows(n_tokens, size, overlap)
    check(found, n_tokens, size)
    assert [start for start, _ in found] == [
        index * (size - overlap) for index in range(len(found))
    ]
    assert all(end == min(start + size, n_tokens) for start, end in found)
    assert windows(n_tokens, size, overlap, [True] * n_tokens) == found


@given(lengths_of_words.filter(len), sizes())
def test_windows_are_cut_between_words(words: list[int], size_overlap: tuple[int, int]) -> None:
    size, overlap = size_overlap
    may_cut, n_tokens = cuts(words), sum(words)
    found = windows(n_tokens, size, overlap, may_cut)
    check(found, n_tokens, size)
    borders = [0, *accumulate(words)]
    torn = {place for window in found for place in window} - {*borders}
    longer = {
        place
        for begin, end in pairwise(borders)
        if end - begin > size
        for place in range(begin + 1, end)
    }
    assert torn <= longer


@given(lengths_of_words.filter(len), sizes())
def test_windows_are_as_long_and_as_near_as_words_let_them(
    words: list[int], size_overlap: tuple[int, int]
) -> None:
    size, overlap = size_overlap
    n_tokens = sum(words)
    places = {*accumulate([0, *words])}
    found = windows(n_tokens, size, overlap, cuts(words))

    def reach(start: int) -> int:
        return max((p for p in places if start < p <= start + size), default=start + size)

    assert all(end == reach(start) for start, end in found)
    for (start, end), (next_start, _) in pairwise(found):
        good = [p for p in places if start < p <= end and reach(p) > end]
        near = [p for p in good if p <= end - overlap]
        if near:  # the least overlap that is enough, or else the most that there can be
            assert next_start == max(near)
        else:
            assert next_start == min(good, default=start + size - overlap)


def test_examples_by_hand() -> None:
    assert windows(10, 4, 2) == [(0, 4), (2, 6), (4, 8), (6, 10)]
    assert windows(9, 4, 1) == [(0, 4), (3, 7), (6, 9)]
    assert windows(9, 4, 3) == windows(9, 4, 2)  # they share half at most
    assert windows(8, 4, 0) == [(0, 4), (4, 8)]
    assert windows(4, 4, 2) == windows(4, 9, 4) == [(0, 4)]
    # Words of 3, 2, 2 and 3 tokens: ends move back, and so do starts.
    assert windows(10, 6, 2, cuts([3, 2, 2, 3])) == [(0, 5), (3, 7), (5, 10)]
    # A window from 4 would end at 7, which the first one reached: the next starts there instead.
    assert windows(15, 8, 4, cuts([4, 3, 8])) == [(0, 7), (7, 15)]
    # A word longer than a window is torn as if it were many.
    assert windows(9, 4, 1, cuts([1, 8])) == [(0, 1), (1, 5), (4, 8), (7, 9)]


def test_no_tokens_are_one_empty_window() -> None:
    assert windows(0, 4, 2) == windows(0, 4, 2, []) == [(0, 0)]
    assert most_central([(0, 0)], 0) == []


@given(lengths_of_words, sizes(), st.booleans())
def test_the_most_central_window_has_the_most_context(
    words: list[int], size_overlap: tuple[int, int], whole: bool
) -> None:
    n_tokens = sum(words)
    found = windows(n_tokens, *size_overlap, cuts(words) if whole else None)

    def context(token: int, window: int) -> int:
        start, end = found[window]
        return min(token - start, end - 1 - token)

    holding = [
        [window for window, (start, end) in enumerate(found) if start <= token < end]
        for token in range(n_tokens)
    ]
    expected = [
        max(inside, key=lambda window, token=token: (context(token, window), -window))
        for token, inside in enumerate(holding)
    ]
    assert most_central(found, n_tokens) == expected


def test_tokens_far_from_both_ends_of_a_window_are_taken_from_it() -> None:
    assert most_central([(0, 6), (3, 9)], 9) == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert most_central([(0, 5), (2, 7)], 7) == [0, 0, 0, 0, 1, 1, 1]


@given(st.integers(1, 40), sizes(), st.data())
def test_an_answer_that_fits_the_overlap_is_whole_in_some_window(
    n_tokens: int, size_overlap: tuple[int, int], data: st.DataObject
) -> None:
    size, overlap = size_overlap
    start = data.draw(st.integers(0, n_tokens - 1))
    end = min(start + overlap, n_tokens - 1)
    found = windows(n_tokens, size, overlap)
    places = [(window, answer_place(window, start, end)) for window in found]
    assert any(place is not None for _, place in places)
    for (begin, _), place in places:
        assert place is None or (begin + place[0], begin + place[1]) == (start, end)
