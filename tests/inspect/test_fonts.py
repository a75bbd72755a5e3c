"""A character is drawn by a font that has it, or by a stand-in that says so; never as a box."""

import io
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTCollection, TTFont
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import font_manager

from qkv.inspect.draw import fonts
from qkv.inspect.draw.fonts import code_points, families, missing, number_missing
from qkv.inspect.draw.labels import visible
from qkv.inspect.draw.style import new_figure, styled


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Matplotlib's own fonts and no others, whatever this machine has."""
    manager = font_manager.fontManager
    own = [entry for entry in manager.ttflist if "mpl-data" in str(entry.fname)]
    monkeypatch.setattr(manager, "ttflist", own)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])
    forget()
    yield
    monkeypatch.undo()
    forget()


def forget() -> None:
    fonts.chinese_font.cache_clear()
    fonts._face.cache_clear()
    font_manager.fontManager._findfont_cached.cache_clear()


def font(family: str, characters: str) -> TTFont:
    """A font whose every character is a black square."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 800), (800, 800), (800, 0)):
        pen.lineTo(corner)
    pen.closePath()
    names = [".notdef", *(f"u{ord(char):X}" for char in characters)]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord(char): f"u{ord(char):X}" for char in characters})
    builder.setupGlyf(dict.fromkeys(names, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (1000, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    return builder.font


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, *families_and_characters: str) -> None:
    paths = []
    for family, characters in zip(*[iter(families_and_characters)] * 2, strict=True):
        path = folder / f"{family}.ttf"
        font(family, characters).save(path)
        paths.append(str(path))
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: paths)


@pytest.mark.usefixtures("bare_machine")
def test_without_a_chinese_font_there_is_none_and_the_last_resort_does_not_count() -> None:
    listed = {entry.name for entry in font_manager.fontManager.ttflist}
    assert fonts.chinese_font() is None
    assert families() == ["DejaVu Sans"]
    assert "DejaVu Sans" in listed


@pytest.mark.usefixtures("bare_machine")
def test_a_font_that_was_installed_later_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, tmp_path, "House Script", "我爱")
    assert families() == ["DejaVu Sans", "House Script"]
    assert missing("我爱你 a") == {"你"}


@pytest.mark.usefixtures("bare_machine")
def test_a_known_font_comes_first_then_one_with_simplified_characters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    others = ("A Sans", "我", "Z Serif", "我们", "Latin Sans", "abc")
    install(monkeypatch, tmp_path, *others)
    assert fonts.chinese_font() == "Z Serif"
    fonts.chinese_font.cache_clear()
    install(monkeypatch, tmp_path, *others, "SimHei", "我", "Noto Sans CJK SC", "们")
    assert fonts.chinese_font() == "SimHei"  # the better-known one has no 我


@pytest.mark.usefixtures("bare_machine")
def test_a_collection_and_a_broken_file_beside_it_are_no_trouble(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    collection = TTCollection()
    collection.fonts = [font("Noto Sans CJK JP", "我"), font("Noto Sans CJK SC", "我们")]
    collection.save(tmp_path / "cjk.ttc")
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    paths = [str(tmp_path / "broken.ttf"), str(tmp_path / "cjk.ttc")]
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: paths)
    # before matplotlib 3.11, a collection is its first face
    assert fonts.chinese_font() in ("Noto Sans CJK SC", "Noto Sans CJK JP")
    assert missing("我") == set()


@pytest.mark.usefixtures("bare_machine")
def test_a_found_font_draws_its_characters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, "House Script", "我爱")
    assert number_missing(["我", "love"]) == (["我", "love"], None)
    with styled(), warnings.catch_warnings():
        warnings.simplefilter("error")
        figure, axes = new_figure()
        axes.set_title("我爱 love")
        figure.savefig(io.BytesIO())


@pytest.mark.usefixtures("bare_machine")
def test_a_font_file_that_has_gone_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, tmp_path, "SimHei", "我")
    font_manager.fontManager.addfont(tmp_path / "SimHei.ttf")
    (tmp_path / "SimHei.ttf").unlink()
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])
    assert fonts.chinese_font() is None


@pytest.mark.usefixtures("no_chinese")
def test_what_no_font_has_gets_numbers_and_a_sentence() -> None:
    texts, note = number_missing(["我", "love", "爱你", "我", "##们", "x我y"])
    assert texts == ["⟨1⟩", "love", "⟨2⟩", "⟨1⟩", "##⟨3⟩", "x⟨1⟩y"]
    assert note is not None
    assert note.startswith("⟨1⟩ = 我, ⟨2⟩ = 爱你, ⟨3⟩ = 们: no font on this machine")
    assert "fonts-noto-cjk" in note and ".svg" in note
    assert note.count(". ") == 0 and note.endswith(".")


@pytest.mark.usefixtures("no_chinese")
def test_a_long_legend_is_cut() -> None:
    _, note = number_missing([chr(ord("一") + offset) for offset in range(30)])
    assert note is not None and "⟨12⟩" in note and "⟨13⟩" not in note and "and 18 more" in note


@pytest.mark.usefixtures("no_chinese")
def test_a_note_inside_a_figure_spells_code_points() -> None:
    assert code_points("⟨1⟩ = 我, ⟨2⟩ = 爱你: no") == "⟨1⟩ = U+6211, ⟨2⟩ = U+7231 U+4F60: no"


@given(st.lists(st.text(), max_size=4))
def test_whatever_the_texts_nothing_is_missing_from_what_is_drawn(texts: list[str]) -> None:
    drawn, note = number_missing(texts)
    assert len(drawn) == len(texts)
    assert missing("".join(drawn)) == set()
    assert (note is None) == (drawn == texts)
    assert note is None or missing(code_points(note)) == set()


def test_no_label_is_blank() -> None:
    assert visible(" the") == "␣the"
    assert visible("\n") == "↵"
    assert visible("") == "∅"
    assert missing("".join(map(visible, " \n\t"))) == set()
