"""Examples in their three uses: nothing on two sides, and smaller draws within larger ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.config import DataConfig
from qkv.data.splits import Splits, draw_examples, read_splits
from qkv.errors import UserError

Example = tuple[str, int]  # a text and its number


def split(examples: list[Example], size: int = 5, seed: int = 0) -> Splits[Example]:
    config = DataConfig(examples=("a.tsv",), valid_size=size)
    return read_splits(config, seed, lambda paths, name: list(examples), lambda one: one[0])


@given(
    st.lists(st.sampled_from("abcdefghijklmnop"), min_size=30, max_size=60),
    st.integers(1, 10),
    st.integers(0, 3),
)
def test_examples_with_the_same_text_stay_on_the_same_side(
    texts: list[str], size: int, seed: int
) -> None:
    examples = [(text, number) for number, text in enumerate(texts)]
    try:
        found = split(examples, size, seed)
    except UserError as error:  # no text is rare enough to be held out whole
        assert "too few, or too alike" in str(error)
        assert min(Counter(texts).values()) > min(size, len(texts) // 10)
        return
    assert sorted(found.train + found.valid) == sorted(examples)
    assert not {text for text, _ in found.train} & {text for text, _ in found.valid}
    assert 1 <= len(found.valid) <= min(size, len(texts) // 10)
    assert found.train == sorted(found.train, key=lambda one: one[1])  # in their order
    assert split(examples, size, seed) == found


def test_what_is_held_out_depends_on_the_seed() -> None:
    examples = [(str(number), number) for number in range(200)]
    assert len(split(examples, 20).valid) == 20
    assert split(examples, 20).valid != split(examples, 20, seed=1).valid


def test_at_most_a_tenth_is_cut_off_and_fewer_than_ten_are_too_few() -> None:
    assert len(split([(str(n), n) for n in range(25)], 1000).valid) == 2
    with pytest.raises(UserError, match=r"9 examples are too few.*give valid_examples"):
        split([(str(n), n) for n in range(9)])


def test_files_are_read_where_they_are_named_and_told_apart_in_errors() -> None:
    asked: list[tuple[tuple[str, ...], str]] = []

    def read(paths: Sequence[str], name: str) -> list[Example]:
        asked.append((tuple(paths), name))
        return [(f"{path} {number}", number) for path in paths for number in range(10)]

    def splits(**names: tuple[str, ...]) -> Splits[Example]:
        asked.clear()
        return read_splits(DataConfig(**names), 0, read, lambda one: one[0])

    found = splits(examples=("a", "b"), valid_examples=("c",), test_examples=("d",))
    assert asked == [(("a", "b"), ""), (("c",), "valid_"), (("d",), "test_")]
    assert [len(part) for part in (found.train, found.valid, found.test)] == [20, 10, 10]
    found = splits(examples=("a",))
    assert asked == [(("a",), "")]
    assert [len(part) for part in (found.train, found.valid, found.test)] == [9, 1, 0]


KINDS = st.lists(st.sampled_from("xyz"), min_size=1, max_size=40)


@given(KINDS, st.integers(0, 3))
def test_a_larger_draw_holds_the_smaller_ones(kinds: list[str], seed: int) -> None:
    examples = list(enumerate(kinds))
    before: set[tuple[int, str]] = set()
    for size in range(1, len(examples) + 1):
        drawn = draw_examples(examples, size, seed, lambda one: one[1])
        assert len(drawn) == len(set(drawn)) == size
        assert before < set(drawn)
        before = set(drawn)
    assert before == set(examples)


@given(KINDS, st.integers(1, 40), st.integers(0, 3))
def test_kinds_are_drawn_as_evenly_as_they_can_be(kinds: list[str], size: int, seed: int) -> None:
    """No kind has two fewer than another, unless it has no more."""
    drawn = draw_examples(list(enumerate(kinds)), size, seed, lambda one: one[1])
    there, found = Counter(kinds), Counter(kind for _, kind in drawn)
    for kind, count in there.items():
        assert found[kind] == count or found[kind] >= max(found.values()) - 1


def test_no_size_draws_all_and_so_does_one_that_is_too_large() -> None:
    examples = list(range(7))
    for size in (0, 7, 99):
        assert draw_examples(examples, size, 0, lambda one: None) == examples


def test_what_is_drawn_depends_on_the_seed() -> None:
    examples = list(range(100))
    draws = [draw_examples(examples, 10, seed, lambda one: None) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert draws[0] != examples[:10]


def test_the_last_example_of_a_label_is_never_cut_off() -> None:
    examples = [(str(number), number) for number in range(40)]
    config = DataConfig(examples=("a.tsv",), valid_size=4)
    for seed in range(30):
        found = read_splits(
            config,
            seed,
            lambda paths, name: list(examples),
            lambda one: one[0],
            lambda one: ("rare" if one[1] in (3, 4) else "usual", "only" if one[1] == 7 else "all"),
        )
        numbers = {number for _, number in found.train}
        assert numbers & {3, 4}
        assert 7 in numbers
        assert sorted(found.train + found.valid, key=lambda one: one[1]) == examples
