"""Entities, against seqeval and by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval import metrics

from qkv.errors import UserError
from qkv.evaluation.classification import Figures
from qkv.evaluation.entities import entity_report

Labels = list[list[str]]
LABELS = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("LOC", "PER", "a-b"))]


def pairs_of_sentences(labels: list[str]) -> st.SearchStrategy[list[list[tuple[str, str]]]]:
    """Sentences of (found, gold) labels, which are the same more often than not."""
    label = st.sampled_from(labels)
    token = label.map(lambda same: (same, same)) | st.tuples(label, label)
    return st.lists(st.lists(token, min_size=1, max_size=8), min_size=1, max_size=4)


@given(pairs_of_sentences(LABELS))
def test_reports_are_seqeval_s(sentences: list[list[tuple[str, str]]]) -> None:
    found = [[ours for ours, _ in sentence] for sentence in sentences]
    gold = [[theirs for _, theirs in sentence] for sentence in sentences]
    report = entity_report(found, gold)
    assert report.accuracy == pytest.approx(metrics.accuracy_score(gold, found))
    if not report.types:  # seqeval has no report of nothing
        assert report.whole == Figures(0, 0, 0, 0)
        return
    theirs = metrics.classification_report(gold, found, output_dict=True, zero_division=0)
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
    assert report.tables()[0].split("\n") == [
        "                precision  recall     F1  support",
        "LOC                  0.00    0.00   0.00        1",
        "PER                 50.00  100.00  66.67        1",
        "地名                 0.00    0.00   0.00        1",
        "",
        "all entities        33.33   33.33  33.33        3",
        "token accuracy                     71.43        7",
    ]


def test_nothing_but_o_has_no_entities_to_find() -> None:
    report = entity_report([["O", "O"]], [["O", "O"]])
    assert (report.types, report.whole.f1, report.accuracy) == ({}, 0, 1)


@pytest.mark.parametrize(
    ("found", "gold", "sentence"),
    [
        ([["O"]], [["O"], ["O"]], "1 outputs but 2 references"),
        ([["O"], ["O"]], [["O"], ["O", "O"]], "Sentence 2 has 1 labels but"),
        ([[]], [[]], "hold no tokens"),
        ([["O"]], [["LOC"]], "'LOC' is no label .* one of B-, I-, E-, S-"),
        ([["M-LOC"]], [["O"]], "'M-LOC' is no label"),
    ],
)
def test_what_cannot_be_read_is_said(found: Labels, gold: Labels, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        entity_report(found, gold)
