"""Entities, against seqeval and by hand."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval import metrics
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB1, IOB2, IOBES, Entities

from qkv.errors import UserError
from qkv.evaluate.classification import Figures
from qkv.evaluate.entities import Scheme, entities, entity_report

SCHEMES = {"iob1": IOB1, "iob2": IOB2, "bioes": IOBES}
IOB_LABELS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
BIOES_LABELS = [*IOB_LABELS, "E-LOC", "S-LOC", "E-PER", "S-PER"]
LABELS = {"auto": BIOES_LABELS, "iob1": IOB_LABELS, "iob2": IOB_LABELS, "bioes": BIOES_LABELS}

named_schemes = st.sampled_from(list(SCHEMES))


def pairs_of_sentences(labels: list[str]) -> st.SearchStrategy[list[list[tuple[str, str]]]]:
    """Sentences of (found, gold) labels, which are the same more often than not."""
    label = st.sampled_from(labels)
    token = label.map(lambda one: (one, one)) | st.tuples(label, label)
    return st.lists(st.lists(token, min_size=1, max_size=8), min_size=1, max_size=4)


@given(st.lists(st.sampled_from([*BIOES_LABELS, "B", "I", "E", "S", "I-a-b"]), max_size=12))
def test_entities_are_read_as_conll_s_script_reads_them(labels: list[str]) -> None:
    assert entities(labels) == [(kind, a, b + 1) for kind, a, b in get_entities(labels)]


@given(st.data(), named_schemes)
def test_strict_entities_are_seqeval_s(data: st.DataObject, scheme: Scheme) -> None:
    labels = data.draw(st.lists(st.sampled_from(LABELS[scheme]), max_size=12))
    theirs = Entities([labels], SCHEMES[scheme]).entities[0]
    assert entities(labels, scheme, strict=True) == [
        (entity.tag, entity.start, entity.end) for entity in theirs
    ]


@given(st.data(), st.sampled_from(["auto", *SCHEMES]), st.booleans())
def test_reports_are_seqeval_s(data: st.DataObject, scheme: Scheme, strict: bool) -> None:
    strict = strict and scheme != "auto"
    sentences = data.draw(pairs_of_sentences(LABELS[scheme]))
    found = [[one for one, _ in sentence] for sentence in sentences]
    gold = [[other for _, other in sentence] for sentence in sentences]
    report = entity_report(found, gold, scheme, strict)
    mode = {"mode": "strict", "scheme": SCHEMES[scheme]} if strict else {}
    assert report.accuracy == pytest.approx(metrics.accuracy_score(gold, found))
    if not report.types:  # seqeval has no report of nothing
        assert report.whole == Figures(0, 0, 0, 0)
        return
    theirs = metrics.classification_report(gold, found, output_dict=True, zero_division=0, **mode)
    ours = {**report.types, "micro avg": report.whole}
    assert ours.keys() == theirs.keys() - {"macro avg", "weighted avg"}
    for name, figures in ours.items():
        mine = (figures.precision, figures.recall, figures.f1, figures.support)
        assert mine == pytest.approx(tuple(theirs[name].values()))


def test_two_sentences_by_hand() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-地名", "I-地名"]]
    found = [["B-PER", "I-PER", "O", "B-PER"], ["O", "B-地名", "O"]]
    report = entity_report(found, gold)
    assert report.types == {
        "LOC": Figures(0, 0, 0, 1),
        "PER": Figures(0.5, 1, pytest.approx(2 / 3), 1),
        "地名": Figures(0, 0, 0, 1),
    }
    assert [str(score) for score in report.scores()] == [
        "entity F1 33.33",
        "entity precision 33.33",
        "entity recall 33.33",
        "token accuracy 71.43",
    ]
    assert report.table().split("\n") == [
        "                precision  recall     F1  support",
        "LOC                  0.00    0.00   0.00        1",
        "PER                 50.00  100.00  66.67        1",
        "地名                 0.00    0.00   0.00        1",
        "",
        "all entities        33.33   33.33  33.33        3",
        "token accuracy                     71.43        7",
    ]


@pytest.mark.parametrize(
    ("labels", "scheme", "lenient", "strict"),
    [
        (["I-X", "I-X"], "iob2", [("X", 0, 2)], []),
        (["B-X", "I-Y"], "iob2", [("X", 0, 1), ("Y", 1, 2)], [("X", 0, 1)]),
        (["I-X", "I-X", "B-X"], "iob1", [("X", 0, 2), ("X", 2, 3)], [("X", 0, 2), ("X", 2, 3)]),
        (["O", "B-X", "I-X"], "iob1", [("X", 1, 3)], [("X", 2, 3)]),
        (["B-X", "I-X"], "bioes", [("X", 0, 2)], []),
        (["B-X", "E-X", "S-X"], "bioes", [("X", 0, 2), ("X", 2, 3)], [("X", 0, 2), ("X", 2, 3)]),
        ([], "iob2", [], []),
    ],
)
def test_what_breaks_the_rules_counts_unless_strict(
    labels: list[str], scheme: Scheme, lenient: list[object], strict: list[object]
) -> None:
    assert entities(labels, scheme) == lenient
    assert entities(labels, scheme, strict=True) == strict


def test_real_labels_keep_to_their_scheme(shared_data: Path) -> None:
    text = (shared_data / "wnut17" / "valid.conll").read_text(encoding="utf-8")
    sentences: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.strip():
            sentences[-1].append(line.split("\t")[1])
        elif sentences[-1]:
            sentences.append([])
    gold = list(filter(None, sentences))
    report = entity_report(gold, gold, "iob2", strict=True)
    assert report == entity_report(gold, gold)
    assert len(gold) == 1009
    assert report.whole == Figures(1, 1, 1, sum(label[0] == "B" for one in gold for label in one))


def test_nothing_but_o_has_no_entities_to_find() -> None:
    report = entity_report([["O", "O"]], [["O", "O"]])
    assert (report.types, report.whole.f1, report.accuracy) == ({}, 0, 1)


@pytest.mark.parametrize(
    ("measure", "sentence"),
    [
        (lambda: entity_report([["O"]], [["O"], ["O"]]), "1 answers but 2 gold ones"),
        (lambda: entity_report([["O"], ["O"]], [["O"], ["O", "O"]]), "Sentence 2 has 1 labels but"),
        (lambda: entity_report([[]], [[]]), "hold no tokens"),
        (lambda: entities(["LOC"]), "'LOC' is no label of an entity: that is O, or one of B-, I-,"),
        (lambda: entities(["M-LOC"]), "'M-LOC' is no label"),
        (lambda: entities(["B-"]), "'B-' is no label"),
        (lambda: entities([""]), "'' is no label"),
        (lambda: entities(["S-LOC"], "iob2"), "one of B-, I- and a type"),
        (lambda: entities(["O"], "iob3"), "Unknown scheme 'iob3'; it may be one of auto, iob1"),
        (lambda: entities(["O"], strict=True), "need a scheme"),
    ],
)
def test_what_cannot_be_read_is_said(measure, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=sentence):
        measure()
