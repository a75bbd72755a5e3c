"""Figures of classes, against scikit-learn and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.preprocessing import MultiLabelBinarizer

from qkv.errors import UserError
from qkv.evaluation.classification import (
    ClassReport,
    Figures,
    classification_report,
    multilabel_report,
)

LABELS = ["neutral", "好评", "差评", "never"]
PAIRS = st.lists(st.tuples(*[st.sampled_from(LABELS[:3])] * 2), min_size=1, max_size=30)
SETS = st.sets(st.sampled_from(LABELS[:3]))
PAIRS_OF_SETS = st.lists(st.tuples(SETS, SETS), min_size=1, max_size=20)


def assert_same_classes(report: ClassReport, gold: object, found: object, labels: object) -> None:
    each = metrics.precision_recall_fscore_support(gold, found, labels=labels, zero_division=0)
    ours = [(one.precision, one.recall, one.f1, one.support) for one in report.classes]
    np.testing.assert_allclose(np.array(ours).T, each, atol=1e-12)
    means = {"micro": report.micro, "macro": report.macro, "weighted": report.weighted}
    for average, mean in means.items():
        if mean is not None:
            expected = metrics.precision_recall_fscore_support(
                gold, found, labels=labels, average=average, zero_division=0
            )
            assert (mean.precision, mean.recall, mean.f1) == pytest.approx(expected[:3])


@pytest.mark.filterwarnings("ignore:A single label was found")
@given(PAIRS)
def test_one_label_a_text_as_scikit_learn_counts_it(pairs: list[tuple[str, str]]) -> None:
    found, gold = [one for one, _ in pairs], [other for _, other in pairs]
    report = classification_report(found, gold, LABELS)
    assert_same_classes(report, gold, found, LABELS)
    assert report.accuracy == pytest.approx(metrics.accuracy_score(gold, found))
    assert report.matthews == pytest.approx(metrics.matthews_corrcoef(gold, found))
    np.testing.assert_array_equal(
        report.confusion, metrics.confusion_matrix(gold, found, labels=LABELS)
    )
    assert report.micro is None


@given(PAIRS_OF_SETS)
def test_several_labels_a_text_as_scikit_learn_counts_them(
    pairs: list[tuple[set[str], set[str]]],
) -> None:
    found, gold = [one for one, _ in pairs], [other for _, other in pairs]
    report = multilabel_report(found, gold, LABELS)
    binarizer = MultiLabelBinarizer(classes=LABELS).fit([LABELS])
    in_gold, in_found = binarizer.transform(gold), binarizer.transform(found)
    assert_same_classes(report, in_gold, in_found, range(len(LABELS)))
    assert report.accuracy == pytest.approx(metrics.accuracy_score(in_gold, in_found))
    assert (report.confusion, report.matthews) == (None, None)
    assert report.micro is not None


def test_four_texts_by_hand() -> None:
    report = classification_report(list("aabb"), list("abbb"), ["a", "b"])
    assert report.classes == (
        Figures(1 / 2, 1, 2 / 3, support=1),
        Figures(1, 2 / 3, 4 / 5, support=3),
    )
    assert report.confusion is not None
    assert report.confusion.tolist() == [[1, 0], [1, 2]]  # gold in rows
    assert [str(score) for score in report.scores()] == [
        "accuracy 75.00",
        "macro F1 73.33",
        "MCC 57.74",  # 1/√3
    ]


def test_the_table_and_the_matrix_align_chinese_labels() -> None:
    gold = ["好评", "好评", "差评", "neutral"]
    report = classification_report(["好评", "差评", "差评", "neutral"], gold, LABELS[:3])
    assert report.table().split("\n") == [
        "          precision  recall      F1  support",
        "neutral      100.00  100.00  100.00        1",
        "好评         100.00   50.00   66.67        2",
        "差评          50.00  100.00   66.67        1",
        "",
        "accuracy                      75.00        4",
        "macro         83.33   83.33   77.78        4",
        "weighted      87.50   75.00   75.00        4",
    ]
    assert report.matrix().split("\n") == [
        "gold \\ found  neutral  好评  差评",
        "neutral             1     0     0",
        "好评                0     1     1",
        "差评                0     0     1",
    ]


def test_accents_on_a_letter_take_no_room_and_full_width_letters_twice() -> None:
    labels = ["e\u0301", "x", "Ｘ"]
    composed, plain, wide = classification_report(labels, labels, labels).matrix().split("\n")[1:]
    assert (len(composed), len(wide)) == (len(plain) + 1, len(plain) - 1)


def test_several_labels_have_a_micro_mean_and_no_matrix() -> None:
    report = multilabel_report([["a"], ["a", "b"], []], [["a"], ["a"], ["b"]], ["a", "b"])
    assert [(score.name, score.value) for score in report.scores()] == [
        ("accuracy", pytest.approx(100 / 3)),
        ("macro F1", pytest.approx(50)),
        ("micro F1", pytest.approx(200 / 3)),
    ]
    assert "\nmicro" in report.table()
    with pytest.raises(UserError, match="no confusion matrix of several labels"):
        report.matrix()


def test_a_label_given_twice_is_one() -> None:
    assert multilabel_report([["a", "a"]], [["a"]], ["a"]).accuracy == 1
