"""Markdown as it comes: shown once, whatever the pieces, and no character is lost."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.cli.markdown_stream import MarkdownStream

BOLD, DIM, ITALIC, CODE, UNDERLINED = "1", "2", "3", "36", "4"
PAGE = """\
# Three *fruits* to know

An **apple a day** is `good()` for you, see [the book](http://x.y/z): 2 * 3 * 4, f(*args),
snake_case_name, 5*3=15 and __init__ of ***all*** things, 这是**重点**内容，*也是*如此。

- an item that is long enough to be broken at the edge of this narrow terminal
  * a *nested* one
1. first
22) second
> a quote that is long enough to be broken at the edge of this narrow terminal

```python
def f(*a, **k):
    # | no table
    return "``x`` **y**"
```
| fruit | n |
|:------|--:|
| 苹果 | **2** |
| fig | 10 |

---
我爱你我爱你我爱你我爱你我爱你我爱你我爱你我爱你我爱你 **never closed
the last line, `not closed either"""
SHOWN = """\
Three fruits to know

An apple a day is good() for you, see
the book (http://x.y/z): 2 * 3 * 4,
f(*args),
snake_case_name, 5*3=15 and __init__ of
all things, 这是重点内容，也是如此。

• an item that is long enough to be
  broken at the edge of this narrow
  terminal
  • a nested one
1. first
22) second
│ a quote that is long enough to be
│ broken at the edge of this narrow
│ terminal

```python
def f(*a, **k):
    # | no table
    return "``x`` **y**"
```
 fruit   n
 ─────────
 苹果    2
 fig    10

───────────────────────────────────────
我爱你我爱你我爱你我爱你我爱你我爱你我
爱你我爱你我爱你 **never closed
the last line, `not closed either
"""


def shown(*pieces: str, columns: int = 40, whole: bool = True) -> str:
    """What is written of pieces, or so far where they are not the `whole`."""
    written: list[str] = []
    text = MarkdownStream(written.append, lambda: columns)
    for piece in pieces:
        text.feed(piece)
    if whole:
        text.finish()
    return "".join(written)


def plain(text: str) -> str:
    """Without styles, and without the spaces that fill a table's cells at its edge."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return "\n".join(line.rstrip() for line in text.split("\n"))


@pytest.fixture(autouse=True)
def styled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_page_as_it_is_read() -> None:
    assert plain(shown(PAGE)) == SHOWN


@given(st.lists(st.integers(1, len(PAGE) - 1), max_size=60))
def test_the_pieces_do_not_matter(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(PAGE)]
    pieces = [PAGE[start:end] for start, end in pairwise(edges)]
    assert plain(shown(*pieces)) == SHOWN


@given(st.text(alphabet="ab *_`[]()\\#-|>~1.\n你", max_size=60))
def test_letters_are_never_lost_nor_doubled(text: str) -> None:
    """Only marks are taken away, and only what stands before a line is added."""
    pieces = shown(*text, columns=200)
    assert [c for c in plain(pieces) if c in "ab你"] == [c for c in text if c in "ab你"]


@pytest.mark.parametrize(
    ("text", "styles"),
    [
        ("**b**", {BOLD: "b"}),
        ("__b__ _i_", {ITALIC: "i"}),
        ("*i* and `c`.", {ITALIC: "i", CODE: "c"}),
        ("**b `c`**", {BOLD: "b", f"{BOLD};{CODE}": "c"}),
        ("# head", {BOLD: "head"}),
        ("> said", {DIM: "│ said"}),
        ("[here](x)", {UNDERLINED: "here", DIM: "(x)"}),
        ("```\ncode\n```", {DIM: "``````", CODE: "code"}),
        ("`` a`b ``", {CODE: "a`b"}),
        (r"\*no\* 2*3*4 a_b_c f(*x) [1] `", {}),
    ],
)
def test_styles(text: str, styles: dict[str, str]) -> None:
    found: dict[str, str] = {}
    for style, content in re.findall(r"\x1b\[([0-9;]+)m(.*?)\x1b\[0m", shown(*text)):
        found[style] = found.get(style, "") + content
    assert found == styles


def test_what_is_decided_is_shown_at_once() -> None:
    pieces = ["some words, then **bo", "ld** and ", "\n```\nco"]
    for number, end in enumerate(("some words, then", "some words, then bold and", "\n```\nco"), 1):
        assert plain(shown(*pieces[:number], whole=False)).endswith(end)


def test_a_mark_that_is_not_closed_is_not_waited_for_forever() -> None:
    text = shown("**" + "word " * 100, whole=False)
    assert plain(text).startswith("**word word")


def test_a_model_cannot_control_the_terminal() -> None:
    text = "a\x1b[2J\x1b]0;title\x07b\x9b1mc\r\bd"
    assert shown(text) == "a[2J]0;titleb1mcd\n"


def test_words_that_are_longer_than_a_row() -> None:
    assert shown("x" * 25, columns=11) == "x" * 10 + "\n" + "x" * 10 + "\n" + "x" * 5 + "\n"
    assert shown("- " + "x" * 12, columns=11) == "• " + "x" * 8 + "\n  " + "x" * 4 + "\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_styles_where_none_are_wanted(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert "\x1b" not in shown(PAGE)
    assert plain(shown(PAGE)) == SHOWN
