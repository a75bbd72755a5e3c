"""Pictures are written whole, and show the labels and counts."""

import re
from pathlib import Path

import pytest

from qkv.errors import UserError
from qkv.evaluation.calibration import calibration
from qkv.evaluation.classification import classification_report, multilabel_report
from qkv.evaluation.pictures import draw_confusion, draw_reliability

GOLD = ["好评"] * 20 + ["差评"] * 30 + ["$a$"] * 17
FOUND = ["好评"] * 18 + ["差评"] * 31 + ["好评"] * 1 + ["$a$"] * 17
REPORT = classification_report(FOUND, GOLD, ["好评", "差评", "$a$"])
CALIBRATION = calibration([[0.9, 0.1]] * 23 + [[0.3, 0.7]] * 19, [0] * 20 + [1] * 22)


def words(path: Path) -> list[str]:
    """The text of an SVG, piece by piece."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))


def test_a_confusion_matrix_shows_each_class_and_each_count(tmp_path: Path) -> None:
    draw_confusion(REPORT, tmp_path / "confusion.svg")
    shown = words(tmp_path / "confusion.svg")
    for label in REPORT.labels:
        assert shown.count(label) == 2  # once for each axis, and $a$ is no formula
    assert {"gold", "found", f"accuracy {100 * REPORT.accuracy:.2f} %"} <= set(shown)
    assert REPORT.confusion is not None
    counts = [str(count) for row in REPORT.confusion.tolist() for count in row if count]
    assert re.search(" ".join(counts), " ".join(shown))  # row by row


def test_a_reliability_diagram_shows_the_sentence_and_each_bin(tmp_path: Path) -> None:
    draw_reliability(CALIBRATION, tmp_path / "reliability.svg")
    shown = words(tmp_path / "reliability.svg")
    assert {"confidence, %", "accuracy, %", CALIBRATION.describe(), "23", "19"} <= set(shown)


def test_many_classes_fit_on_a_picture(tmp_path: Path) -> None:
    labels = [f"class {number}" for number in range(60)]
    draw_confusion(classification_report(labels, labels, labels), tmp_path / "many.svg")
    assert words(tmp_path / "many.svg").count("class 59") == 2


def test_several_labels_a_text_have_no_confusion_to_draw(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no confusion matrix of several labels"):
        draw_confusion(multilabel_report([["a"]], [["a"]], ["a"]), tmp_path / "picture.png")
