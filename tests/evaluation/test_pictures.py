"""Pictures are written whole, and show the labels and counts."""

import re
import warnings
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


@pytest.mark.parametrize("name", ["picture.png", "folder/PICTURE.PNG"])
def test_a_png_is_one_and_nothing_is_left_beside_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a font without Han glyphs is passed over in silence
        draw_confusion(REPORT, path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    first = path.read_bytes()
    draw_reliability(CALIBRATION, path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert path.read_bytes() != first
    assert list(path.parent.iterdir()) == [path]


def test_the_same_picture_is_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw_confusion(REPORT, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_many_classes_fit_on_a_picture(tmp_path: Path) -> None:
    labels = [f"class {number}" for number in range(60)]
    draw_confusion(classification_report(labels, labels, labels), tmp_path / "many.svg")
    assert words(tmp_path / "many.svg").count("class 59") == 2


@pytest.mark.parametrize("name", ["picture.jpg", "picture", "png"])
def test_other_endings_are_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"{name} ends in .* a figure is written as"):
        draw_confusion(REPORT, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_several_labels_a_text_have_no_confusion_to_draw(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no confusion matrix of several labels"):
        draw_confusion(multilabel_report([["a"]], [["a"]], ["a"]), tmp_path / "picture.png")
