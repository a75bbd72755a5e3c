"""Markdown on a terminal as it comes: each character is printed once, and nothing is redrawn.

Text is held back only where the next characters decide what it is: a word until it ends, so that
lines break between words; `**bold**`, `*italic*`, `code` and [links](…) until they are closed; and
a table until its last row, for the widths of its columns.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from itertools import groupby
from typing import NamedTuple

from rich.cells import cell_len

from qkv.cli.common import is_styled

Write = Callable[[str], object]

# Codes of "select graphic rendition" (ECMA-48)
BOLD, DIM, ITALIC, UNDERLINED, CYAN = "1", "2", "3", "4", "36"
MOST_HELD = 300  # characters after a mark that is not closed; then it is only a character
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line break
STYLES = re.compile(r"\x1b\[[0-9;]*m")
SPECIAL = re.compile(r"[*_`\[\\]")
ESCAPED = re.compile(r"\\[!-/:-@\[-`{-~]")
LINK = re.compile(r"\[(?P<text>[^\[\]\n]+)\]\((?P<address>[^()\s]+)\)")
SPANS = (
    (re.compile(r"(`+)(?!`)(?P<text>[^\n]+?)(?<!`)\1(?!`)"), CYAN),
    (re.compile(r"\*\*\*(?=[^\s*])(?P<text>[^*\n]+?)(?<=\S)\*\*\*(?!\*)"), f"{BOLD};{ITALIC}"),
    (re.compile(r"\*\*(?=[^\s*])(?P<text>[^\n]+?)(?<=\S)\*\*(?!\*)"), BOLD),
    (re.compile(r"\*(?=[^\s*])(?P<text>[^*\n]+?)(?<=\S)\*(?![*A-Za-z0-9])"), ITALIC),
    (re.compile(r"_(?=[^\s_])(?P<text>[^_\n]+?)(?<=\S)_(?!\w)"), ITALIC),
)
# What decides how a line is shown: up to its content, or the whole line
FENCE = re.compile(r" {0,3}(?P<mark>`{3,}|~{3,})[^`\n]*$")
HEADING = re.compile(r" {0,3}#{1,6} +")
ITEM = re.compile(r"(?P<indent> *)(?P<mark>[-*+]|\d{1,9}[.)]) +(?=\S)")
QUOTE = re.compile(r" {0,3}> ?")
RULE = re.compile(r" {0,3}([-*_])( *\1){2,} *$")
TABLE = re.compile(r" {0,3}\|")
UNDECIDED = re.compile(
    r" *(#{0,6}|`{1,2}|`{3,}[^`]*|~{1,2}|~{3,}.*|\d{0,9}[.)]?|[+>]|[-*_ ]+|\|.*)? *$"
)


class Piece(NamedTuple):
    """Text in one style."""

    text: str
    style: str = ""


class MarkdownStream:
    """Prints Markdown that is fed piece by piece."""

    def __init__(self, write: Write, width: Callable[[], int] | None = None) -> None:
        """Take a function that writes to a terminal, and one that returns its columns."""
        self._paper = _Paper(write, width or (lambda: shutil.get_terminal_size().columns))
        self._held = ""  # what was fed and not shown
        self._before = ""  # the last character of the line that was shown
        self._style: str | None = None  # of the line that was begun; None: none was
        self._fence = ""  # the mark of the code block that was opened
        self._table: list[str] = []

    def feed(self, text: str) -> None:
        """Show what is decided once this text has come."""
        self._held += CONTROLS.sub("", text).replace("\t", "    ")
        while "\n" in self._held:
            line, self._held = self._held.split("\n", 1)
            self._show_line(line)
        if self._held:
            self._show_part()

    def finish(self) -> None:
        """Show the rest, and end the last line."""
        if self._held or self._style is not None:
            line, self._held = self._held, ""
            self._show_line(line)
        self._show_table()
        self._fence = ""

    def _show_line(self, line: str) -> None:
        """Show the rest of a line that has come to its end."""
        if self._style is None:
            if self._table and not TABLE.match(line):
                self._show_table()
            if self._is_whole(line):
                return
            line = self._begin(line)
        self._inline(line, is_whole=True)
        self._paper.end_line()
        self._style, self._before = None, ""

    def _show_part(self) -> None:
        """Show as much of an open line as is decided."""
        if self._style is None:
            if self._is_undecided(self._held):
                return
            self._show_table()
            self._held = self._begin(self._held)
        self._held = self._inline(self._held, is_whole=False)

    def _is_undecided(self, begun: str) -> bool:
        if self._fence:
            return not begun.strip().strip(self._fence[0])
        return bool(UNDECIDED.match(begun))

    def _is_whole(self, line: str) -> bool:
        """Show a line that is no text: the edge of a code block, a rule, a row of a table."""
        fence = FENCE.match(line)
        if self._fence:
            if not line.strip().startswith(self._fence) or line.strip().strip(self._fence[0]):
                return False
            self._fence = ""
            self._show_mark(line)
        elif fence:
            self._fence = fence["mark"]
            self._show_mark(line)
        elif TABLE.match(line):
            self._table.append(line)
        elif RULE.match(line):
            self._show_mark("─" * min(40, self._paper.width))
        else:
            return False
        return True

    def _show_mark(self, line: str) -> None:
        self._paper.begin_line("")
        self._paper.put(line, DIM)
        self._paper.end_line()

    def _begin(self, line: str) -> str:
        """Begin a line with what stands before its content; return the content."""
        self._style = ""
        if self._fence:
            self._style = CYAN
            self._paper.begin_line("", wraps=False)
            return line
        if heading := HEADING.match(line):
            self._style = BOLD
            self._paper.begin_line("")
            return line[heading.end() :]
        if quote := QUOTE.match(line):
            self._style = DIM
            self._paper.begin_line("│ ", "│ ", DIM)
            return line[quote.end() :]
        if item := ITEM.match(line):
            mark = item["mark"] if item["mark"][0].isdigit() else "•"
            lead = f"{item['indent']}{mark} "
            self._paper.begin_line(lead, " " * len(lead))
            return line[item.end() :]
        indent = line[: len(line) - len(line.lstrip(" "))]
        self._paper.begin_line(indent, indent)
        return line[len(indent) :]

    def _inline(self, text: str, is_whole: bool) -> str:
        """Show a line's text as far as it is decided; return the rest."""
        assert self._style is not None
        if self._fence:
            self._paper.put(text, self._style)
            return ""
        pieces, rest = _cut(text, self._before, is_whole)
        for piece in pieces:
            self._paper.put(piece.text, _joined(self._style, piece.style))
            self._before = piece.text[-1]
        return rest

    def _show_table(self) -> None:
        if not self._table:
            return
        from rich.console import Console
        from rich.markdown import Markdown

        source, self._table = "\n".join(self._table), []
        console = Console(width=self._paper.width, force_terminal=self._paper.is_styled)
        with console.capture() as captured:
            console.print(Markdown(source))
        for line in captured.get().splitlines():
            if STYLES.sub("", line).strip():  # there is an empty row at either edge
                self._paper.write(f"{line}\n")


def _cut(text: str, before: str, is_whole: bool) -> tuple[list[Piece], str]:
    """Cut a line's text, which follows the character `before`, into styled pieces.

    Also return what is undecided while the line may go on: it begins with a mark.
    """
    pieces: list[Piece] = []
    while text:
        special = SPECIAL.search(text)
        length = special.start() if special else len(text)
        styled = [Piece(text[:length])]
        if not length:
            styled, length = _span(text, before, is_whole)
            if not length:
                break
        pieces += styled
        before, text = styled[-1].text[-1], text[length:]
    return pieces, text


def _span(text: str, before: str, is_whole: bool) -> tuple[list[Piece], int]:
    """Read what a mark begins: its pieces and length; a length of 0 where it is undecided."""
    # So snake_case and 2*3 stay as they are; Chinese has no spaces around emphasis.
    inside_word = text[0] in "_*" and text[1:2] != text[0] and before.isalnum() and before.isascii()
    if escaped := ESCAPED.match(text):
        return [Piece(escaped[0][1])], 2
    if link := LINK.match(text):
        return [Piece(link["text"], UNDERLINED), Piece(f" ({link['address']})", DIM)], link.end()
    for pattern, style in SPANS:
        span = pattern.match(text)
        # A mark at the end of what has come may be the first of two.
        if not span or inside_word or (span.end() == len(text) and not is_whole):
            continue
        if style == CYAN:
            content = span["text"]
            return [Piece(content[1:-1] if _is_padded(content) else content, CYAN)], span.end()
        inner, _ = _cut(span["text"], "", is_whole=True)
        return [Piece(piece.text, _joined(style, piece.style)) for piece in inner], span.end()
    if not is_whole and len(text) < MOST_HELD and not inside_word and _may_open(text):
        return [], 0
    length = len(text) - len(text.lstrip(text[0]))
    return [Piece(text[:length])], length


def _is_padded(code: str) -> bool:
    """Whether the spaces around code are there only to part it from its marks."""
    return len(code) > 2 and code[0] == code[-1] == " " and bool(code.strip())


def _may_open(text: str) -> bool:
    """Whether a mark may still turn out to open a span."""
    if text[0] == "[":
        return bool(re.fullmatch(r"\[[^\[\]\n]*(\]|\]\([^()\s]*)?", text))
    if text[0] == "\\":
        return len(text) == 1
    after = text.lstrip(text[0])
    return not after or text[0] == "`" or not after[0].isspace()


def _joined(*styles: str) -> str:
    return ";".join(filter(None, styles))


class _Paper:
    """Rows of a terminal: breaks lines between words, and begins each row of a line alike."""

    def __init__(self, write: Write, width: Callable[[], int]) -> None:
        self.write, self._width = write, width
        self.is_styled = is_styled()
        self._column = 0
        self._hanging = Piece("")  # what begins further rows of the line
        self._wraps = True
        self._word: list[Piece] = []
        self._spaces = ""  # before the word, dropped at the end of a row

    @property
    def width(self) -> int:
        """Columns to use: the last one is left free, for some terminals break after it."""
        return max(10, self._width() - 1)

    def begin_line(self, lead: str, hanging: str = "", style: str = "", wraps: bool = True) -> None:
        """Begin a line, and say what begins its further rows."""
        self._hanging, self._wraps = Piece(hanging, style), wraps
        self._emit(lead, style)

    def put(self, text: str, style: str = "") -> None:
        """Add text to the line; its last word is shown when it is complete."""
        if not self._wraps:
            self._emit(text, style)
            return
        for character in text:
            if character == " ":
                self._show_word()
                self._spaces += " "
                continue
            is_wide = cell_len(character) > 1  # lines may break around Chinese
            if is_wide:
                self._show_word()
            self._word.append(Piece(character, style))
            if is_wide:
                self._show_word()

    def end_line(self) -> None:
        """Show what is left of the line, and end it."""
        self._show_word()
        self._spaces, self._column = "", 0
        self.write("\n")

    def _show_word(self) -> None:
        """Show a word in one row, or in several where one is too short for it."""
        if not self._word:
            return
        size = len(self._spaces) + sum(cell_len(piece.text) for piece in self._word)
        if self._column + size > self.width and self._column > len(self._hanging.text):
            self._next_row()
        else:
            self._emit(self._spaces)
        for style, characters in groupby(self._word, lambda piece: piece.style):
            run = ""
            for character, _ in characters:
                if self._column + cell_len(run + character) > self.width:
                    self._emit(run, style)
                    self._next_row()
                    run = ""
                run += character
            self._emit(run, style)
        self._word, self._spaces = [], ""

    def _next_row(self) -> None:
        self.write("\n")
        self._column = 0
        self._emit(*self._hanging)

    def _emit(self, text: str, style: str = "") -> None:
        if text:
            self._column += cell_len(text)
            self.write(f"\x1b[{style}m{text}\x1b[0m" if style and self.is_styled else text)
