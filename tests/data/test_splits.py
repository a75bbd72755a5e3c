"""Three splits of examples: nothing held out that is trained on, and draws of any size."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data import Splits, draw_examples, read_splits, repeated
from qkv.errors import UserError

Example = tuple[str, int]  # a text and its number


def split(examples: list[Example], size: int = 5, seed: int = 0) -> Splits[Example]:
    def read(prefix: str) -> list[Example]:
        return [] if prefix else list(examples)

    return read_splits(read, "examples", size, seed, key=lambda example: example[0])


def numbered(n: int) -> list[Example]:
    return [(str(number), number) for number in range(n)]


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
        splits = split(examples, size, seed)
    except UserError as error:  # no text is rare enough to be held out whole
        assert "too few, or too alike" in str(error)
        assert min(Counter(texts).values()) > min(size, len(texts) // 10)
        return
    assert sorted(splits.train + splits.valid) == sorted(examples)
    assert not {text for text, _ in splits.train} & {text for text, _ in splits.valid}
    assert 1 <= len(splits.valid) <= min(size, len(texts) // 10)
    assert splits.train == sorted(splits.train, key=lambda example: example[1])  # in their order
    assert split(examples, size, seed) == splits


def test_at_most_a_tenth_is_held_out_by_the_seed() -> None:
    assert len(split(numbered(200), 20).valid) == 20
    assert split(numbered(200), 20).valid != split(numbered(200), 20, seed=1).valid
    assert len(split(numbered(25), 1000).valid) == 2
    with pytest.raises(UserError, match=r"9 examples are too few.*give valid_examples"):
        split(numbered(9))
    with pytest.raises(UserError, match="give valid_pairs, or valid_source and valid_target"):
        read_splits(lambda prefix: [] if prefix else numbered(9), "pairs", 5, 0, key=lambda x: x[0])
    with pytest.raises(UserError, match=r"no examples are given; set examples under \[data\]"):
        split([])


def test_splits_that_are_given_are_kept_and_what_they_repeat_is_said() -> None:
    given: dict[str, list[Example]] = {
        "": [("a", 1), ("b", 2), ("b", 3)],
        "valid_": [("a", 4), ("b", 2), ("c", 5)],
        "test_": [("d", 6)],
    }
    splits = read_splits(given.__getitem__, "pairs", 5, 0, key=lambda example: example[0])
    assert splits == Splits(*given.values())
    said = list(repeated(splits, "pairs", lambda example: example[0]))
    assert len(said) == 1
    assert said[0].startswith("valid: 2 of 3 pairs are in the training data too")


def test_the_last_example_of_a_label_is_never_held_out() -> None:
    examples = numbered(40)
    for seed in range(30):
        splits = read_splits(
            lambda prefix: [] if prefix else examples,
            "examples",
            4,
            seed,
            key=lambda example: example[0],
            labels=lambda example: (
                "rare" if example[1] in (3, 4) else "usual",
                "only" if example[1] == 7 else "all",
            ),
        )
        numbers = {number for _, number in splits.train}
        assert numbers & {3, 4}
        assert 7 in numbers
        assert sorted(splits.train + splits.valid, key=lambda example: example[1]) == examples


def test_labels_that_are_all_different_are_named_as_the_reason() -> None:
    """As where the text's column is read for the label's."""
    with pytest.raises(UserError, match="each has a label of its own; read labels from the right"):
        read_splits(
            lambda prefix: [] if prefix else numbered(60),
            "examples",
            5,
            0,
            key=lambda example: example[0],
            labels=lambda example: {example[1]},
        )


KINDS = st.lists(st.sampled_from("xyz"), min_size=1, max_size=40)


@given(KINDS, st.integers(0, 3))
def test_a_larger_draw_holds_the_smaller_ones(kinds: list[str], seed: int) -> None:
    examples = list(enumerate(kinds))
    before: set[tuple[int, str]] = set()
    for size in range(1, len(examples) + 1):
        drawn = draw_examples(examples, size, seed, lambda example: example[1])
        assert len(drawn) == len(set(drawn)) == size
        assert before < set(drawn)
        before = set(drawn)
    assert before == set(examples)


@given(KINDS, st.integers(1, 40), st.integers(0, 3))
def test_kinds_are_drawn_as_evenly_as_they_can_be(kinds: list[str], size: int, seed: int) -> None:
    """No kind has two fewer than another, unless it has no more."""
    drawn = draw_examples(list(enumerate(kinds)), size, seed, lambda example: example[1])
    counts = Counter(kind for _, kind in drawn)
    for kind, count in Counter(kinds).items():
        assert counts[kind] == count or counts[kind] >= max(counts.values()) - 1


def test_a_draw_depends_on_the_seed_and_no_size_draws_all() -> None:
    examples = list(range(100))
    for size in (0, 100, 999):
        assert draw_examples(examples, size, 0, lambda example: None) == examples
    draws = [draw_examples(examples, 10, seed, lambda example: None) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert draws[0] != examples[:10]
