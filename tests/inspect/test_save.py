"""Files: whole, the same each time, and text that stays text where the form allows it."""

import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from qkv.errors import UserError
from qkv.inspect import fonts
from qkv.inspect.maps import draw_map
from qkv.inspect.save import save_figure, uses_viewer_fonts
from qkv.inspect.style import new_figure, styled

TOKENS = ["我", "爱", "<b>"]


@pytest.fixture(autouse=True)
def no_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "chinese_font", lambda: None)


def save(path: Path) -> bytes:
    figure = draw_map(np.eye(3), TOKENS, TOKENS, "我爱你 & I", viewer_fonts=uses_viewer_fonts(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(figure, path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("ending", "start"),
    [
        ("png", b"\x89PNG"),
        ("PNG", b"\x89PNG"),
        ("pdf", b"%PDF"),
        ("svg", b"<?xml"),
        ("html", b"<!DOC"),
    ],
)
def test_each_ending_gives_its_form_and_the_same_file_twice(
    tmp_path: Path, ending: str, start: bytes
) -> None:
    first = save(tmp_path / "new" / f"a.{ending}")
    assert first.startswith(start)
    assert save(tmp_path / f"a.{ending}") == first
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"a.{ending}"]


@pytest.mark.parametrize("ending", ["svg", "html"])
def test_text_stays_text_for_the_viewers_fonts(tmp_path: Path, ending: str) -> None:
    text = save(tmp_path / f"a.{ending}").decode()
    assert re.findall(r"<text[^>]*>(我|爱|&lt;b&gt;)</text>", text) == ["我", "爱", "&lt;b&gt;"] * 2
    assert "<dc:date>" not in text
    families = set(re.findall(r"font-family: ([^;\"]*)|font: \d+px ([^;\"]*)", text))
    assert families and all("".join(each).endswith("sans-serif") for each in families)


def test_a_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    text = save(tmp_path / "a.html").decode()
    assert "<title>我爱你 &amp; I</title>" in text
    assert "<script" not in text and "<link" not in text
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?https?:""", text)
    assert text.count("<?xml") == 0


def test_an_unknown_ending_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.gif ends in \.gif, but .*\.png, \.svg, \.pdf, \.html"):
        save(tmp_path / "a.gif")
    with pytest.raises(UserError, match="ends in nothing"):
        save(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(path)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_text_that_no_font_has_is_never_drawn_as_a_box(tmp_path, monkeypatch):
    monkeypatch.setattr("qkv.inspect.fonts.missing", lambda text: set(text) & set("我爱"))
    with styled():
        figure, axes = new_figure()
        axes.set(xlabel="我爱", title="plain")
        axes.text(0.5, 0.5, "我")
    drawn = []
    monkeypatch.setattr(
        "qkv.inspect.save._render",
        lambda figure, form: (
            drawn.append([one.get_text() for one in figure.findobj(Text) if one.get_text()])
            or b"<svg></svg>"
        ),
    )
    save_figure(figure, tmp_path / "here.png")
    save_figure(figure, tmp_path / "there.svg")
    here, there = drawn
    assert not any(character in text for text in here for character in "我爱")
    assert any("⟨1⟩" in text for text in here) and any("fonts-noto-cjk" in text for text in here)
    assert "我爱" in there and "我" in there  # as it was, for the viewer's fonts
    assert not any("fonts-noto-cjk" in text for text in there)


def test_labels_of_ticks_are_spelt_too(tmp_path):
    with styled():
        figure, axes = new_figure()
        axes.set_xticks([0, 1], ["我", "plain"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a glyph that is missing is a warning
        save_figure(figure, tmp_path / "here.png")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure.draw_without_rendering()
    assert [one.get_text() for one in axes.get_xticklabels()] == ["我", "plain"]
