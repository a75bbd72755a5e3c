"""Schemes of tagging: guessed, read, converted, and which sequences they allow."""

import gzip
from itertools import groupby, pairwise, product
from pathlib import Path

import pytest
import seqeval.scheme
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from qkv.text.schemes import (
    PREFIXES,
    Entity,
    Scheme,
    convert,
    entities,
    guess_scheme,
    label_set,
    may_begin,
    may_end,
    may_follow,
    transitions,
)

SCHEMES: tuple[Scheme, ...] = ("iob1", "iob2", "bioes")
THEIRS = {
    "iob1": seqeval.scheme.IOB1,
    "iob2": seqeval.scheme.IOB2,
    "bioes": seqeval.scheme.IOBES,
}
# The same six words, with x from 0 to 2, x at 2, and y at 3 and from 4 to 6, all touching.
SPELT: dict[Scheme, list[str]] = {
    "iob1": ["I-x", "I-x", "B-x", "I-y", "B-y", "I-y"],
    "iob2": ["B-x", "I-x", "B-x", "B-y", "B-y", "I-y"],
    "bioes": ["B-x", "E-x", "S-x", "S-y", "B-y", "E-y"],
}
SPANS = [Entity("x", 0, 2), Entity("x", 2, 3), Entity("y", 3, 4), Entity("y", 4, 6)]


def labels_of(scheme: Scheme, kinds: tuple[str, ...] = ("x", "y")) -> list[str]:
    return ["O", *(f"{prefix}-{kind}" for kind in kinds for prefix in PREFIXES[scheme])]


def any_labels(scheme: Scheme) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(labels_of(scheme)), max_size=8)


@st.composite
def any_entities(draw: st.DrawFn) -> tuple[list[Entity], int]:
    """Entities that often touch, and the number of words that they lie in."""
    found, place = [], 0
    for gap, length, kind in draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from(["x", "y", "a-b"])),
            max_size=5,
        )
    ):
        found.append(Entity(kind, place + gap, place + gap + length))
        place += gap + length
    return found, place + draw(st.integers(0, 2))


def spell(found: list[Entity], n_words: int) -> list[str]:
    """Write entities in IOB2, the plainest of the schemes."""
    labels = ["O"] * n_words
    for kind, start, end in found:
        labels[start:end] = [f"B-{kind}"] + [f"I-{kind}"] * (end - start - 1)
    return labels


def is_valid(labels: list[str], scheme: Scheme) -> bool:
    return not labels or (
        may_begin(labels[0], scheme)
        and all(may_follow(*pair, scheme) for pair in pairwise(labels))
        and may_end(labels[-1], scheme)
    )


@pytest.mark.parametrize(("source", "target"), [*product(SCHEMES, SCHEMES)])
def test_the_same_entities_in_each_scheme(source: Scheme, target: Scheme) -> None:
    assert entities(SPELT[source], source) == SPANS
    assert convert(SPELT[source], source, target) == SPELT[target]


@pytest.mark.parametrize(("source", "target"), [*product(SCHEMES, SCHEMES)])
@given(any_entities())
def test_there_and_back_is_where_one_began(
    source: Scheme, target: Scheme, drawn: tuple[list[Entity], int]
) -> None:
    labels = convert(spell(*drawn), "iob2", source)
    there = convert(labels, source, target)
    assert entities(labels, source) == entities(there, target) == drawn[0]
    assert is_valid(labels, source) and is_valid(there, target)
    assert convert(there, target, source) == labels


@pytest.mark.parametrize("scheme", SCHEMES)
def test_valid_is_what_conversion_leaves_alone(scheme: Scheme) -> None:
    """Over all sequences of up to four labels: valid ones, and no others, are spelt as they are."""
    counts = {True: 0, False: 0}
    for length in range(5):
        for drawn in product(labels_of(scheme), repeat=length):
            labels = list(drawn)
            valid = is_valid(labels, scheme)
            assert valid == (convert(labels, scheme, scheme) == labels)
            counts[valid] += 1
    assert min(counts.values()) > 100


@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_are_those_of_seqeval(scheme: Scheme) -> None:
    @given(any_labels(scheme))
    def lenient(labels: list[str]) -> None:
        theirs = [(kind, start, last + 1) for kind, start, last in get_entities(labels)]
        assert entities(labels, scheme) == theirs

    @given(any_entities())
    def strict(drawn: tuple[list[Entity], int]) -> None:
        labels = convert(spell(*drawn), "iob2", scheme)
        theirs = seqeval.scheme.Entities([labels], THEIRS[scheme]).entities[0]
        assert entities(labels, scheme) == [each.to_tuple()[1:] for each in theirs]

    lenient()
    strict()


def test_sequences_that_are_not_valid_are_read_all_the_same() -> None:
    assert convert(["O", "I-x", "I-y"], "iob2", "bioes") == ["O", "S-x", "S-y"]
    assert convert(["I-x", "E-x", "E-x", "B-x"], "bioes", "iob2") == ["B-x", "I-x", "B-x", "B-x"]


@pytest.mark.parametrize(
    ("sequences", "scheme"),
    [
        ([["O", "B-x", "I-x"], ["B-y"]], "iob2"),
        ([["O", "I-x", "I-x", "O"], ["I-y", "B-y"]], "iob1"),
        ([["I-x", "I-y"]], "iob1"),
        ([["I-x", "O"], ["O", "B-x"]], "iob2"),  # a B- that IOB1 has no use for: I- is a mistake
        ([["I-x", "B-y"]], "iob2"),  # so has it after another kind of entity
        ([["B-x", "E-x"]], "bioes"),
        ([["O"], ["S-x"], ["I-x"]], "bioes"),
        ([["O", "O"], []], "iob2"),
        ([["B-a-b", "I-a-b"]], "iob2"),
        ([["NOUN", "VERB"]], None),
        ([["O", "B-x"], ["X-foo"]], None),
        ([["B", "I"]], None),
        ([["B-"]], None),
        ([["BI-x"]], None),
        ([["-x"]], None),
    ],
)
def test_schemes_are_guessed(sequences: list[list[str]], scheme: Scheme | None) -> None:
    assert guess_scheme(iter(sequences)) == scheme


@given(st.lists(any_entities(), min_size=1))
def test_the_guess_is_the_scheme_wherever_the_text_shows_it(
    drawn: list[tuple[list[Entity], int]],
) -> None:
    plain = [spell(*each) for each in drawn]
    assert guess_scheme(plain) == "iob2"
    n_found = sum(len(found) for found, _ in drawn)
    for scheme in ("iob1", "bioes"):
        guess = guess_scheme([convert(labels, "iob2", scheme) for labels in plain])
        assert guess == (scheme if n_found else "iob2")


@pytest.mark.parametrize(
    ("scheme", "begin", "follow", "end"),
    [
        # after:               O  Bx Ix By Iy
        ("iob1", "10101", ["10101", "11101", "11101", "10111", "10111"], "11111"),
        ("iob2", "11010", ["11010", "11110", "11110", "11011", "11011"], "11111"),
    ],
)
def test_transitions_of_iob(scheme: Scheme, begin: str, follow: list[str], end: str) -> None:
    found = transitions(labels_of(scheme), scheme)
    assert ["".join(map(str, row)) for row in found.follow.astype(int)] == follow
    assert "".join(map(str, found.begin.astype(int))) == begin
    assert "".join(map(str, found.end.astype(int))) == end


def test_transitions_of_bioes() -> None:
    found = transitions(labels_of("bioes"), "bioes")  # O, then B I E S of x and of y
    assert found.begin.astype(int).tolist() == [1, 1, 0, 0, 1, 1, 0, 0, 1]
    assert found.end.astype(int).tolist() == [1, 0, 0, 1, 1, 0, 0, 1, 1]
    closed, open_x, open_y = "110011001", "001100000", "000000110"
    rows = ["".join(map(str, row)) for row in found.follow.astype(int)]
    assert rows == [closed, open_x, open_x, closed, closed, open_y, open_y, closed, closed]


def test_without_a_scheme_all_is_valid() -> None:
    found = transitions(["NOUN", "VERB", "X"], None)
    assert found.begin.shape == found.end.shape == (3,) and found.follow.shape == (3, 3)
    assert found.begin.all() and found.follow.all() and found.end.all()


def test_label_sets_are_complete() -> None:
    sequences = [["I-y"], ["I-x", "B-x", "O"]]
    assert label_set(iter(sequences), "iob1") == ["O", "B-x", "B-y", "I-x", "I-y"]
    assert label_set([["S-x"]], "bioes") == ["O", "B-x", "E-x", "I-x", "S-x"]
    assert label_set([["VERB", "NOUN"], ["VERB"]], None) == ["NOUN", "VERB"]
    assert label_set([["VERB", "O", "NOUN"]], None) == ["O", "NOUN", "VERB"]
    assert label_set([], "iob2") == ["O"]


def test_labels_of_another_scheme_are_refused() -> None:
    for wrong in ("E-x", "NOUN", "B"):
        with pytest.raises(ValueError, match=f"'{wrong}' is no label of the scheme iob2"):
            convert(["O", wrong], "iob2", "bioes")
        with pytest.raises(ValueError, match="is no label of the scheme iob2"):
            label_set([["O", wrong]], "iob2")


def test_a_real_corpus(shared_data: Path) -> None:
    text = gzip.decompress((shared_data / "wnut17" / "train.conll.gz").read_bytes()).decode()
    lines = (line.strip().split("\t") for line in text.splitlines())  # blank ones may hold a tab
    words = groupby(lines, key=lambda line: len(line) == 2)
    sequences = [[label for _, label in group] for is_text, group in words if is_text]
    assert len(sequences) == 3394
    assert guess_scheme(sequences) == "iob2"
    assert len(label_set(sequences, "iob2")) == 2 * 6 + 1
    for labels in sequences:
        assert convert(convert(labels, "iob2", "bioes"), "bioes", "iob2") == labels
