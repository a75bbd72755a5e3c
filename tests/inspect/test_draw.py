"""Heat maps, tables, pages and files: what goes in is what is shown, and text stays text."""

from __future__ import annotations

import io
import os
import re
import warnings
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup
from rich.cells import cell_len
from rich.console import Console

from qkv.errors import UserError
from qkv.inspect.draw.figure import save_figure, svg, svg_html
from qkv.inspect.draw.heat_map import HeatMap
from qkv.inspect.draw.labels import decimal, wrapped
from qkv.inspect.draw.language import language
from qkv.inspect.draw.page import page, piece
from qkv.inspect.draw.style import DARK, DIVERGING, SEQUENTIAL, new_figure, styled
from qkv.inspect.draw.table import Table

ENGLISH = ["I", "love", "you", "$^$", "<eos>"]
CHINESE = ["我", "爱", "你", "。", "<eos>"]
CAUSAL = np.tril(np.ones((5, 5), dtype=bool))
SCRIPT = "<script>alert(1)</script>"


def weights(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).dirichlet(np.ones(shape[-1]), size=shape[:-1])


def panels(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.images and axes.get_visible()]


def labels(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def draw_strictly(figure: Any) -> None:
    """Render it; a missing glyph, or any other warning, is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(io.BytesIO(), format="png")


def printed(parts: Any, width: int = 80) -> list[str]:
    """The lines of a terminal with so many columns."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    for part in parts:
        console.print(part, markup=False)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_a_map_holds_its_weights_tokens_and_names() -> None:
    values = weights(5, 5)
    figure = HeatMap(torch.tensor(values), ENGLISH, ENGLISH[::-1], "Who looks at whom").draw()
    (axes,) = panels(figure)
    np.testing.assert_array_equal(axes.images[0].get_array(), values)
    assert (labels(axes.yaxis), labels(axes.xaxis)) == (ENGLISH, ENGLISH[::-1])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")
    assert figure.get_suptitle() == "Who looks at whom"
    assert figure.axes[-1].get_ylabel() == "attention weight"
    assert [text.get_text() for text in axes.texts] == [f"{value:.2f}" for value in values.flat]
    draw_strictly(figure)  # a token with two dollars is no formula


def test_masked_cells_are_hatched() -> None:
    figure = HeatMap(weights(5, 5), ENGLISH, ENGLISH, allowed=CAUSAL).draw()
    (axes,) = panels(figure)
    np.testing.assert_array_equal(axes.images[0].get_array().mask, ~CAUSAL)
    assert axes.patch.get_hatch() and len(axes.texts) == CAUSAL.sum()
    assert "masked" in figure.get_supxlabel()
    assert not HeatMap(weights(1, 1), ["a"], ["b"]).draw().get_supxlabel()


def test_scores_may_be_negative_and_shut_by_infinity() -> None:
    scores = np.array([[-3.0, -np.inf], [1.0, 2.0]])
    image = panels(HeatMap(scores, "ab", "ab").draw())[0].images[0]
    assert image.get_clim() == (-3, 3) and image.get_cmap().name == DIVERGING
    np.testing.assert_array_equal(image.get_array().mask, [[False, True], [False, False]])


def test_layers_and_heads_share_axes_and_one_scale() -> None:
    values, names = weights(2, 3, 5, 4), [f"map {number}" for number in range(6)]
    figure = HeatMap(values, ENGLISH, CHINESE[:4], names=names).draw()
    drawn = panels(figure)
    assert [axes.get_title() for axes in drawn] == names
    for axes, expected in zip(drawn, values.reshape(6, 5, 4), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
        assert axes.images[0].get_clim() == (0, values.max())
        assert axes.images[0].get_cmap().name == SEQUENTIAL
    shown = [axes.yaxis.get_tick_params()["labelleft"] for axes in drawn]
    assert shown == [True, False, False] * 2
    below = [axes.xaxis.get_tick_params()["labelbottom"] for axes in drawn]
    assert below == [False] * 3 + [True] * 3


@pytest.mark.parametrize(("count", "across"), [(1, 1), (4, 4), (5, 4), (6, 3), (8, 4)])
def test_heads_fill_rows_and_the_lowest_panels_carry_tokens(count: int, across: int) -> None:
    names = [f"head {head}" for head in range(count)]
    heat = HeatMap(weights(count, 5, 5), ENGLISH, ENGLISH, names=names, allowed=CAUSAL)
    drawn = panels(heat.draw())
    assert {axes.get_subplotspec().colspan.start for axes in drawn} == set(range(across))
    bottom = [axes.xaxis.get_tick_params()["labelbottom"] for axes in drawn]
    assert bottom == [number + across >= count for number in range(count)]


@pytest.mark.parametrize("count", [1, 5, 60, 150])
def test_labels_do_not_overlap(count: int) -> None:
    tokens = [
        f"token{number}" if number % 7 else "international-affairs" for number in range(count)
    ]
    figure = HeatMap(np.full((count, count), 1 / count), tokens, tokens).draw()
    draw_strictly(figure)
    (axes,) = panels(figure)
    assert max(figure.get_size_inches()) < 13
    for axis in (axes.xaxis, axes.yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        edges = [(box.x0, box.x1) if axis is axes.xaxis else (-box.y1, -box.y0) for box in boxes]
        overlaps = [a[1] - b[0] for a, b in pairwise(edges)]
        assert max(overlaps, default=0) < 1.5  # points; letters keep clear of a box's edge
        for label, at in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True):
            assert label.get_text()[:4] == tokens[round(at)][:4]
    assert len(labels(axes.xaxis)) == count if count <= 60 else len(labels(axes.xaxis)) < count


def test_labels_that_do_not_fit_are_turned_and_single_characters_are_not() -> None:
    tokens = ["我", "爱", "international", "be", "c"]
    (axes,) = panels(HeatMap(weights(5, 5), tokens, tokens).draw())
    assert [label.get_rotation() for label in axes.xaxis.get_ticklabels()] == [0, 0, 90, 90, 0]
    assert {label.get_rotation() for label in axes.yaxis.get_ticklabels()} == {0}


@pytest.mark.parametrize("show", [HeatMap.draw, HeatMap.html, lambda heat: list(heat.text(80))])
def test_the_wrong_number_of_tokens_is_our_mistake(show: Any) -> None:
    for heat in (HeatMap(weights(2, 2), "ab", "a"), HeatMap(weights(2, 2, 2), "ab", "ab")):
        with pytest.raises(ValueError, match="named"):
            show(heat)


def test_a_terminal_shows_blocks_values_and_what_is_masked() -> None:
    values = np.array([[1.0, 0.0], [0.25, 0.75]])
    heat = HeatMap(values, ["我", "love"], ["a", "你"], "T", allowed=np.array([[1, 0], [1, 1]]))
    assert printed(heat.text(60), 60) == [
        "T",
        "     a       你",
        "  我 ██ 1.00 ·",
        "love ░░ 0.25 ▓▓ 0.75",
        "",
    ]


def test_narrow_columns_have_upright_heads_and_continue_in_bands() -> None:
    tokens = ["我", "ab", "c", "d", "e", "f"]
    lines = printed(HeatMap(np.eye(6), tokens, tokens).text(11), 11)
    assert lines[:4] == ["     a", "   我b c d", "我 ██", "ab   ██"]
    assert lines[8] == "   e f" and lines[-2] == " f   ██"


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.text("ab我爱 é", max_size=9), min_size=1, max_size=12),
    st.lists(st.text("ab我爱 é", max_size=20), min_size=1, max_size=40),
    st.integers(30, 120),
)
def test_a_map_keeps_within_its_width(rows: list[str], columns: list[str], width: int) -> None:
    text: Any = next(iter(HeatMap(weights(len(rows), len(columns)), rows, columns).text(width)))
    lines = text.plain.split("\n")
    assert max(map(cell_len, lines)) <= width
    assert len(printed([text], width)) == len(lines)  # nothing wraps


class Parsed(HTMLParser):
    """Tags, table cells and heads of a page whose tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.cells: list[dict[str, str | None]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"meta", "br"}:
            self.open.append(tag)
        if tag == "td":
            self.cells.append({**dict(attrs), "text": ""})

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells[-1]["text"] = data


def test_each_cell_of_a_page_says_who_looks_at_whom_and_how_much() -> None:
    tokens = ["我", '<b"x">', "&"]
    values = np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.1, 0.2, 0.7]])
    cells = Parsed(HeatMap(values, tokens, tokens[::-1], "a < b").html()).cells
    hints = ["我 → &: 0.5", '我 → <b"x">: 0.25', "我 → 我: 0.25"]
    assert [cell["title"] for cell in cells[:3]] == hints
    assert [cell["text"] for cell in cells] == [f"{value:.2f}" for value in values.flat]
    assert [cell["style"] for cell in cells[3:5]] == ["--v:100%", "--v:0%"]


def test_masked_and_negative_cells_are_marked() -> None:
    scores = np.array([[1.0, -np.inf], [-2.0, 0.5]])
    cells = Parsed(HeatMap(scores, "ab", "ab", allowed=np.array([[1, 1], [1, 0]])).html()).cells
    assert [cell.get("class") for cell in cells] == [None, "shut", "minus much", "shut"]
    assert cells[1]["title"] == "a → b: masked"


def test_a_large_map_shows_values_under_the_mouse_alone() -> None:
    cells = Parsed(HeatMap(np.full((60, 60), 1 / 60), ["a"] * 60, ["b"] * 60).html()).cells
    assert len(cells) == 3600
    assert {(cell["text"], cell["title"]) for cell in cells} == {("", "a → b: 0.01667")}


def test_a_script_in_any_text_is_escaped() -> None:
    maps = HeatMap(np.ones((2, 1, 1)), [SCRIPT], [SCRIPT], SCRIPT, [SCRIPT, SCRIPT])
    table = Table([SCRIPT], [[SCRIPT]], SCRIPT)
    texts = piece("texts", {SCRIPT: [SCRIPT]})
    section = piece("section", SCRIPT, SCRIPT, maps.html() + table.html())
    whole = page(SCRIPT, [texts, section, piece("fragment", SCRIPT)])
    assert "<script" not in whole and "script" not in Parsed(whole).tags
    assert whole.count("&lt;script&gt;") == 21


def test_a_page_needs_nothing_from_elsewhere_and_knows_light_and_dark() -> None:
    whole = page("<i>", [Table(["<a>"], [["1"], ["2"]]).html()])
    parsed = Parsed(whole)
    assert whole.startswith("<!DOCTYPE html>") and "<title>&lt;i&gt;</title>" in whole
    assert "link" not in parsed.tags and "http" not in whole
    assert "prefers-color-scheme:dark" in whole
    assert [cell["text"] for cell in parsed.cells] == ["1", "2"]


def test_a_fragments_style_touches_nothing_but_the_fragment() -> None:
    style = re.search(r"<style>(.*)</style>", piece("fragment", Markup("x")), re.S)
    assert style is not None
    for selectors in re.findall(r"(?:^|[}{])\s*([^{}@]+)\{", style[1]):
        assert all(part.strip().startswith(".qkv-glass") for part in selectors.split(","))


def save(path: Path) -> bytes:
    figure = HeatMap(np.eye(3), ["我", "爱", "<b>"], ["我", "爱", "<b>"], "我爱你 & I").draw()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(figure, path)
    return path.read_bytes()


FORMATS = {"png": b"\x89PNG", "PNG": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml", "html": b"<!DOC"}


@pytest.mark.usefixtures("no_chinese")
@pytest.mark.parametrize("ending", FORMATS)
def test_each_ending_gives_its_format_and_the_same_file_twice(tmp_path: Path, ending: str) -> None:
    first = save(tmp_path / "new" / f"a.{ending}")
    assert first.startswith(FORMATS[ending])
    assert save(tmp_path / f"a.{ending}") == first
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"a.{ending}"]


@pytest.mark.usefixtures("no_chinese")
@pytest.mark.parametrize("ending", ["svg", "html"])
def test_text_stays_text_for_the_viewers_fonts(tmp_path: Path, ending: str) -> None:
    text = save(tmp_path / f"a.{ending}").decode()
    assert re.findall(r"<text[^>]*>(我|爱|&lt;b&gt;)</text>", text) == ["我", "爱", "&lt;b&gt;"] * 2
    assert "<dc:date>" not in text and "<script" not in text and "<link" not in text
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?https?:""", text)
    families = re.findall(r"font-family: ([^;}]*)", text)
    assert families and all(names.endswith(", sans-serif") for names in families)
    if ending == "html":
        assert "<title>我爱你 &amp; I</title>" in text and "<?xml" not in text


def test_an_unknown_ending_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.gif ends in \.gif, but .*\.png, \.svg, \.pdf, \.html"):
        save(tmp_path / "a.gif")
    with pytest.raises(UserError, match="ends in nothing"):
        save(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_chart_in_a_dark_page_has_light_type_on_dark_paper(tmp_path: Path) -> None:
    drawn = save(tmp_path / "a.svg").decode()
    (rules,) = re.findall(r"@media\(prefers-color-scheme:dark\)\{(.*?)\}</style>", drawn)
    assert all(part.startswith(".qkv-chart") for part in re.split(r"[},](?=.)", rules))
    paper = re.search(r'style="(fill: #\w+)"', drawn)  # of the figure, which is drawn first
    assert paper is not None and f'[style*="{paper[1]}"]' in rules
    assert ".qkv-chart text{fill:#e8e8e8}" in rules and ".qkv-chart image{filter:invert" in rules


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


@pytest.mark.usefixtures("no_chinese")
def test_characters_without_a_font_are_numbered_in_pixels_and_kept_in_the_figure(
    tmp_path: Path,
) -> None:
    with styled():
        figure, axes = new_figure()
        axes.set_xticks([0, 1], ["我", "plain"])
        axes.set(xlabel="爱你", title="$a$")
        axes.text(0.5, 0.5, "我")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a missing glyph is a warning
        note = save_figure(figure, tmp_path / "here.png")
    assert note is not None and "= 我" in note and "= 爱你" in note and "fonts-noto-cjk" in note
    draw_strictly(figure)  # savefig of the figure itself numbers them too
    assert save_figure(figure, tmp_path / "there.svg") is None
    for text in (tmp_path / "there.svg").read_text(encoding="utf-8"), figure._repr_html_():
        assert ">我</text>" in text and ">爱你</text>" in text and "fonts-noto-cjk" not in text


def test_coordinates_of_an_svg_are_rounded_and_its_texts_are_not() -> None:
    figure, axes = new_figure()
    axes.plot([0, 1 / 3, 1], [0, 1 / 7, 1])
    axes.set_title("0.123456")
    drawn = svg(figure)
    assert "0.123456" in drawn
    paths = re.findall(r' d="([^"]*)"', drawn)
    assert paths and not any(re.search(r"\.\d{3}", path) for path in paths)


def test_a_table_breaks_between_pairs_and_not_within_one() -> None:
    pairs = [f"word{number} 0.{number}" for number in range(8)]
    table = Table(["attention", "best heads", "chance"], [("encoder", "  ".join(pairs), "0.03")])
    lines = printed(table.text(40), 40)
    assert all(cell_len(line) <= 40 for line in lines) and len(lines) > 3
    assert all(any(pair in line for line in lines) for pair in pairs)
    assert all(f"<span>{pair}</span>" in table.html() for pair in pairs)


def test_chinese_labels_that_do_not_fit_are_written_downwards() -> None:
    tokens = ["图书馆", "本书", "了", "library"] * 5
    (axes,) = panels(HeatMap(weights(20, 20), tokens, tokens).draw())
    assert labels(axes.xaxis)[:4] == ["图\n书\n馆", "本\n书", "了", "library"]
    turned = [label.get_rotation() for label in axes.xaxis.get_ticklabels()[:4]]
    assert turned == [0, 0, 0, 90]
    assert labels(axes.yaxis)[:4] == tokens[:4]


def test_the_heads_of_one_layer_are_not_one_long_row() -> None:
    names = [f"head {head}" for head in range(12)]
    assert HeatMap(weights(1, 12, 5, 5), ENGLISH, ENGLISH, names=names).n_across == 4
    two = [f"{layer}.{head}" for layer in range(2) for head in range(12)]
    assert HeatMap(weights(2, 12, 5, 5), ENGLISH, ENGLISH, names=two).n_across == 12


def test_maps_to_compare_have_one_scale() -> None:
    faint = HeatMap(np.full((2, 2), 0.1), "ab", "cd", strongest=1.0)
    assert panels(faint.draw())[0].images[0].get_clim() == (0, 1)
    assert not any("█" in line for line in printed(faint.text(80)))
    assert "--v:10%" in faint.html()


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (-1.5, ".2f", "−1.50"),
        (-0.001, ".2f", "0.00"),
        (2, "+.1f", "+2.0"),
    ],
)
def test_a_minus_sign_is_no_hyphen_and_zero_has_none(value: float, form: str, text: str) -> None:
    assert decimal(value, form) == text


def test_numbers_of_maps_have_the_minus_sign_everywhere() -> None:
    heat = HeatMap(np.array([[-1.25, 2.0]]), "a", "bc")
    assert "−1.25" in " ".join(printed(heat.text(80))) and ">−1.25<" in heat.html()
    assert "−1.25" in [text.get_text() for text in panels(heat.draw())[0].texts]


def test_a_line_break_splits_no_short_bracket() -> None:
    assert wrapped("编码器：看第一个词元（注意力汇）", 28) == "编码器：看第一个词元\n（注意力汇）"


def test_a_page_names_its_language_and_keeps_short_cells_whole() -> None:
    table = Table(["候选", "原因"], [["剪掉", "有 5 个可继续的候选得分更高"]]).html()
    assert "<td>剪掉" in table and '<td class="long">有' in table
    with language("zh"):
        assert '<html lang="zh-CN">' in page("标题", [])
    assert '<html lang="en">' in page("Title", [])


def test_a_long_table_with_a_title_is_folded() -> None:
    rows = [[str(row)] for row in range(25)]
    assert "<summary>All (25)</summary>" in Table(["n"], rows, "All").html()
    for table in (Table(["n"], rows), Table(["n"], rows[:24], "All")):
        assert "<details>" not in table.html()


def test_a_chart_in_a_page_shrinks_as_long_as_its_type_can_be_read() -> None:
    figure, _ = new_figure(10, 3)
    html = svg_html(figure)
    width = float(re.search(r'width="([\d.]+)pt"', html)[1])  # type: ignore[index]
    least = float(re.search(r"--least:(\d+)pt", html)[1])  # type: ignore[index]
    assert least == pytest.approx(0.7 * width, abs=1)
    assert "min-width:var(--least)" in page("", [html])


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_a_legend_is_between_the_axes_and_the_notes_under_a_figure(
    tmp_path: Path, ending: str
) -> None:
    with styled():
        figure, axes = new_figure(5, 3)
        axes.plot([0, 1], label="line")
        axes.set_xlabel("step")
        legend = figure.legend(loc="outside lower center")
        note = figure.text(0.5, -0.5, "a note", va="top")
    places = []

    def draw(renderer: Any) -> None:
        box, bottom = legend.get_window_extent(), figure.transFigure.transform((0, 0))[1]
        places.append((bottom, box.y0, box.y1, axes.get_tightbbox().y0))

    note.draw = draw  # type: ignore[method-assign]
    for _ in range(2):
        save_figure(figure, tmp_path / f"figure{ending}")
        bottom, low, high, above = places[-1]
        assert bottom - 1 < low < high < above + 1


def test_every_colour_with_a_dark_twin_gets_its_rule_where_it_is_drawn() -> None:
    figure, axes = new_figure()
    for number, light in enumerate(DARK):
        axes.bar(number, 1, color=light)
    drawn = svg(figure)
    for light, dark in DARK.items():
        assert f'[style*="fill: {light.lower()}"]{{fill:{dark}!important}}' in drawn, light
    plain, axes = new_figure()
    axes.plot([0, 1])
    assert DARK["#333333"] in drawn and DARK["#333333"] not in svg(plain)


def test_an_svg_says_nothing_twice_that_its_style_says_once() -> None:
    figure, axes = new_figure()
    axes.plot([0, 1], label="font")
    axes.set_title("two  spaces")
    drawn = svg(figure)
    assert drawn.count("font-family") == 1 and ">two  spaces<" in drawn
    assert not re.search(r"\n |rotate\(-?0 |<metadata>|<g id=", drawn)
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    identifiers = re.findall(r' id="([^"]*)"', drawn)
    assert {*re.findall(r"(?:url\(|href=\")#([^)\"]*)", drawn)} <= {*identifiers}
