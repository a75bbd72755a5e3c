"""HTML that stands alone: what a person typed is text in it, and each value can be read."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from qkv.inspect.pages import fragment, heat_map, heat_maps, page, paragraph, section, table

TOKENS = ["我", '<b"x">', "&"]
VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Notes tags, texts and tooltips, and that each tag is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.cells: list[dict[str, str | None]] = []
        self.heads: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append({**dict(attrs), "text": ""})

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells[-1]["text"] = data
        if "th" in self.open:
            self.heads.append(data)


def test_each_cell_tells_who_looks_at_whom_and_how_much() -> None:
    weights = np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.1, 0.2, 0.7]])
    read = Reader(heat_map(weights, TOKENS, TOKENS[::-1], "a < b"))
    assert read.heads == [*TOKENS[::-1], *(token for token in TOKENS)]
    assert [cell["title"] for cell in read.cells[:3]] == [
        "我 → &: 0.5",
        '我 → <b"x">: 0.25',
        "我 → 我: 0.25",
    ]
    assert [cell["text"] for cell in read.cells] == [f"{value:.2f}" for value in weights.flat]
    assert [cell["style"] for cell in read.cells[3:5]] == ["--v:100%", "--v:0%"]


def test_masked_and_negative_cells_are_marked() -> None:
    scores = np.array([[1.0, -np.inf], [-2.0, 0.5]])
    read = Reader(heat_map(scores, "ab", "ab", allowed=np.array([[1, 1], [1, 0]])))
    assert [cell.get("class") for cell in read.cells] == [None, "shut", "minus much", "shut"]
    assert read.cells[1]["title"] == "a → b: masked"


def test_a_large_map_keeps_values_in_tooltips_alone() -> None:
    read = Reader(heat_map(np.full((60, 60), 1 / 60), ["a"] * 60, ["b"] * 60))
    assert len(read.cells) == 3600
    assert {cell["text"] for cell in read.cells} == {""}
    assert {cell["title"] for cell in read.cells} == {"a → b: 0.01667"}


def test_a_grid_has_a_table_a_head_in_one_scale() -> None:
    weights = np.stack([np.full((2, 2), 0.5), np.eye(2), np.eye(2), np.eye(2)]).reshape(2, 2, 2, 2)
    text = heat_maps(weights, "ab", "ab", layers=[3, 4])
    read = Reader(text)
    assert read.tags.count("table") == 4
    assert re.findall(r"<caption>(.*?)</caption>", text) == [
        f"layer {layer}, head {head}" for layer in (3, 4) for head in (0, 1)
    ]
    assert read.cells[0]["style"] == "--v:50%"
    assert len(Reader(heat_maps(weights[0], "ab", "ab")).cells) == 8


def test_the_wrong_number_of_tokens_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="1 rows × 2 columns"):
        heat_map(np.eye(2), "a", "ab")


def test_a_page_stands_alone_in_light_and_dark() -> None:
    text = page("<i>", [section("x & y", paragraph("1 < 2"), table(["<a>"], [[1], ["<script>"]]))])
    read = Reader(text)
    assert text.startswith("<!DOCTYPE html>") and "<title>&lt;i&gt;</title>" in text
    assert "script" not in read.tags and "link" not in read.tags and "http" not in text
    assert "prefers-color-scheme:dark" in text
    assert [cell["text"] for cell in read.cells] == ["1", "<script>"]
    assert "x &amp; y" in text and "1 &lt; 2" in text


def test_a_fragments_style_touches_nothing_but_the_fragment() -> None:
    style = re.search(r"<style>(.*)</style>", fragment("x"), re.S)
    assert style is not None
    for selectors in re.findall(r"(?:^|[}{])\s*([^{}@]+)\{", style[1]):
        assert all(each.strip().startswith(".qkv-glass") for each in selectors.split(","))
