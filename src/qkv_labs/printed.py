"""Tables as plain text that is no wider than a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len

GAP = 2  # columns of space between two cells
NARROW = 8  # a heading is not broken into lines narrower than this
_PIECE = re.compile(r"[\u2e80-\u9fff\uff00-\uffef]|[^\s\u2e80-\u9fff\uff00-\uffef]+|\s+")


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]], width: int = 80) -> list[str]:
    """Lay out a table; one that is too wide becomes several, each with what names its rows."""
    cells = [max([1, *(cell_len(row[index]) for row in rows)]) for index in range(len(head))]
    widths = [max(size, cell_len(text)) for size, text in zip(cells, head, strict=True)]
    if sum(widths) + GAP * (len(widths) - 1) > width:  # then headings take several lines
        widths = [max(size, _least(text)) for size, text in zip(cells, head, strict=True)]
    lines: list[str] = []
    for columns in _blocks(widths, width, _n_names(rows)):
        shown = [widths[column] for column in columns]
        shown[-1] = min(shown[-1], width - sum(shown[:-1]) - GAP * (len(shown) - 1))
        lines += _row([head[column] for column in columns], shown)
        lines.append((" " * GAP).join("─" * size for size in shown))
        for row in rows:
            lines += _row([row[column] for column in columns], shown)
        lines.append("")
    return lines


def _n_names(rows: Sequence[Sequence[str]]) -> int:
    """Count the first columns that tell all rows apart; 1 if no number of them does."""
    for count in range(1, len(rows[0]) if rows else 1):
        if len({tuple(row[:count]) for row in rows}) == len(rows):
            return count
    return 1


def _blocks(widths: Sequence[int], width: int, n_names: int) -> list[list[int]]:
    """Group columns so that each group fits and begins with the names, as many as there is room."""
    if len(widths) == 1:
        return [[0]]

    def fits(columns: Sequence[int]) -> bool:
        return sum(widths[index] for index in columns) + GAP * (len(columns) - 1) <= width

    blocks = [[0, 1]]
    for column in range(2, len(widths)):
        wanted = [*blocks[-1], column]
        if fits(wanted):
            blocks[-1] = wanted
        else:
            names = [*range(n_names)]
            blocks.append([*names, column] if fits([*names, column]) else [0, column])
    return blocks


def _least(heading: str) -> int:
    """Return the least width for a heading: its longest word, or a few Chinese characters."""
    longest = max((cell_len(piece) for piece in _PIECE.findall(heading)), default=0)
    return max(longest, min(cell_len(heading), NARROW))


def _row(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the lines of one row; what does not fit a column goes on below."""
    wrapped = [wrap(cell, size) for cell, size in zip(cells, widths, strict=True)]
    height = max(map(len, wrapped))
    lines = []
    for index in range(height):
        parts = [lines_[index] if index < len(lines_) else "" for lines_ in wrapped]
        padded = [
            part + " " * (size - cell_len(part)) for part, size in zip(parts, widths, strict=True)
        ]
        lines.append((" " * GAP).join(padded).rstrip())
    return lines


def wrap(text: str, width: int) -> list[str]:
    """Break a text into lines of this width, between words and Chinese characters."""
    lines = [""]
    for piece in _PIECE.findall(text):
        if cell_len(lines[-1] + piece.rstrip()) > width and lines[-1]:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
        if lines[-1] or not piece.isspace():
            lines[-1] += piece
    return lines
