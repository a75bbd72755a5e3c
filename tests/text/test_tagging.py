"""Tagging schemes: guessed, read, and which sequences they allow."""

import gzip
from itertools import groupby, pairwise, product
from pathlib import Path

import pytest
import seqeval.scheme
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from qkv.text.tagging import (
    OUTSIDE,
    PREFIXES,
    Entity,
    Scheme,
    entities,
    guess_scheme,
    label_set,
    may_follow,
    transitions,
)
from tests.text.labels import write_labels

SCHEMES: tuple[Scheme, ...] = ("iob1", "iob2", "bioes")
THEIRS = {"iob1": "IOB1", "iob2": "IOB2", "bioes": "IOBES"}
# Six words, with x from 0 to 2, x at 2, and y at 3 and from 4 to 6, all touching.
WRITTEN: dict[Scheme, str] = {
    "iob1": "I-x I-x B-x I-y B-y I-y",
    "iob2": "B-x I-x B-x B-y B-y I-y",
    "bioes": "B-x E-x S-x S-y B-y E-y",
}
FOUND = [Entity("x", 0, 2), Entity("x", 2, 3), Entity("y", 3, 4), Entity("y", 4, 6)]
Drawn = tuple[list[Entity], int]


def labels_of(scheme: Scheme) -> list[str]:
    return ["O", *(f"{prefix}-{kind}" for kind in "xy" for prefix in PREFIXES[scheme])]


@st.composite
def any_entities(draw: st.DrawFn) -> Drawn:
    """Draw entities that often touch, and the number of words that they lie in."""
    made, end = [], 0
    sizes = st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from(["x", "y", "a-b"]))
    for gap, length, kind in draw(st.lists(sizes, max_size=5)):
        made.append(Entity(kind, end + gap, end + gap + length))
        end += gap + length
    return made, end + draw(st.integers(0, 2))


def is_valid(labels: list[str], scheme: Scheme) -> bool:
    return all(may_follow(*pair, scheme) for pair in pairwise([OUTSIDE, *labels, OUTSIDE]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_are_read_in_each_scheme(scheme: Scheme) -> None:
    assert entities(WRITTEN[scheme].split(), scheme) == FOUND
    assert write_labels(FOUND, 6, scheme) == WRITTEN[scheme].split()

    @given(any_entities())
    def any_are_read_as_written(drawn: Drawn) -> None:
        labels = write_labels(*drawn, scheme)
        assert entities(labels, scheme) == drawn[0]
        theirs = seqeval.scheme.Entities([labels], getattr(seqeval.scheme, THEIRS[scheme]))
        assert drawn[0] == [entity.to_tuple()[1:] for entity in theirs.entities[0]]

    any_are_read_as_written()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_valid_are_the_sequences_that_entities_are_written_as(scheme: Scheme) -> None:
    """Over all sequences of up to four labels."""
    counts = {True: 0, False: 0}
    for length in range(5):
        for labels in map(list, product(labels_of(scheme), repeat=length)):
            valid = is_valid(labels, scheme)
            assert valid == (write_labels(entities(labels, scheme), length, scheme) == labels)
            counts[valid] += 1
    assert min(counts.values()) > 100


@pytest.mark.parametrize("scheme", SCHEMES)
def test_invalid_sequences_are_read_as_in_seqeval(scheme: Scheme) -> None:
    @given(st.lists(st.sampled_from(labels_of(scheme)), max_size=8))
    def check(labels: list[str]) -> None:
        theirs = [(kind, start, last + 1) for kind, start, last in get_entities(labels)]
        assert entities(labels, scheme) == theirs

    check()


@pytest.mark.parametrize(
    ("sequences", "scheme"),
    [
        (["O B-x I-x", "B-y"], "iob2"),
        (["O I-x I-x O", "I-y B-y"], "iob1"),
        (["I-x I-y"], "iob1"),
        (["I-x O", "O B-x"], "iob2"),  # a B- that IOB1 has no use for: I- is a mistake
        (["I-x B-y"], "iob2"),  # so has it after another kind of entity
        (["B-x E-x"], "bioes"),
        (["O", "S-x", "I-x"], "bioes"),
        (["O O", ""], "iob2"),
        (["B-a-b I-a-b"], "iob2"),
        (["NOUN VERB"], None),
        (["O B-x", "X-foo"], None),
        (["B I"], None),
        (["B-"], None),
        (["BI-x"], None),
        (["-x"], None),
    ],
)
def test_schemes_are_guessed(sequences: list[str], scheme: Scheme | None) -> None:
    assert guess_scheme(labels.split() for labels in sequences) == scheme


@given(st.lists(any_entities(), min_size=1))
def test_the_guess_is_the_scheme_wherever_the_labels_show_it(drawn: list[Drawn]) -> None:
    n_entities = sum(len(found) for found, _ in drawn)
    for scheme in SCHEMES:
        guess = guess_scheme([write_labels(*each, scheme) for each in drawn])
        assert guess == (scheme if n_entities else "iob2")


@pytest.mark.parametrize(
    ("scheme", "begin", "follow", "end"),
    [
        # after:               O  Bx Ix By Iy
        ("iob1", "10101", ["10101", "11101", "11101", "10111", "10111"], "11111"),
        ("iob2", "11010", ["11010", "11110", "11110", "11011", "11011"], "11111"),
        (  # O, then B I E S of x and of y
            "bioes",
            "110011001",
            ["110011001", *["001100000"] * 2, *["110011001"] * 2, *["000000110"] * 2]
            + ["110011001"] * 2,
            "100110011",
        ),
        (None, "11111", ["11111"] * 5, "11111"),
    ],
)
def test_transitions(scheme: Scheme | None, begin: str, follow: list[str], end: str) -> None:
    made = transitions(labels_of(scheme or "iob2"), scheme)
    rows = [made.begin, *made.follow, made.end]
    assert ["".join(map(str, row.astype(int))) for row in rows] == [begin, *follow, end]


def test_label_sets_are_complete() -> None:
    found = label_set(iter([["I-y"], ["I-x", "B-x", "O"]]), "iob1")
    assert found == ["O", "B-x", "B-y", "I-x", "I-y"]
    assert label_set([["S-x"]], "bioes") == ["O", "B-x", "E-x", "I-x", "S-x"]
    assert label_set([["VERB", "NOUN"], ["VERB"]], None) == ["NOUN", "VERB"]
    assert label_set([["VERB", "O", "NOUN"]], None) == ["O", "NOUN", "VERB"]
    assert label_set([], "iob2") == ["O"]


@pytest.mark.parametrize("wrong", ["E-x", "NOUN", "B"])
def test_labels_of_another_scheme_are_refused(wrong: str) -> None:
    for read in (entities, lambda labels, scheme: label_set([labels], scheme)):
        with pytest.raises(ValueError, match=f"'{wrong}' is no label of the scheme iob2"):
            read(["O", wrong], "iob2")


def test_a_real_corpus(shared_data: Path) -> None:
    text = gzip.decompress((shared_data / "wnut17" / "train.conll.gz").read_bytes()).decode()
    lines = (line.strip().split("\t") for line in text.splitlines())  # blank ones may hold a tab
    words = groupby(lines, key=lambda line: len(line) == 2)
    sequences = [[label for _, label in group] for is_text, group in words if is_text]
    assert len(sequences) == 3394
    assert guess_scheme(sequences) == "iob2"
    assert len(label_set(sequences, "iob2")) == 2 * 6 + 1
    for labels in sequences:
        assert write_labels(entities(labels, "iob2"), len(labels), "iob2") == labels
