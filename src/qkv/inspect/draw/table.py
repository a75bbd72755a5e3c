"""Plain tables, as HTML and in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import rich.table
from markupsafe import Markup
from rich.cells import cell_len
from rich.text import Text

from qkv.inspect.draw.labels import packed
from qkv.inspect.draw.page import piece

GAP = 2  # cells between columns
MAX_OPEN = 24  # rows of a table that a page does not fold
MAX_OTHER = 24  # cells that a column keeps beside one of units


@dataclass(frozen=True)
class Table:
    """Rows of cells under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def html(self) -> Markup:
        """Return an HTML table; a long one with a title is folded, to be opened by a click."""
        many = bool(self.title) and len(self.rows) > MAX_OPEN
        return piece("table", self.title, self.head, self.rows, many)

    def text(self, width: int) -> Iterator[rich.table.Table]:
        """Yield a table that wraps long cells."""
        table, rooms = plain_table(), self._rooms(width)
        for name, room in zip(self.head, rooms, strict=True):
            table.add_column(name, overflow="fold", min_width=room)
        for row in self.rows:
            cells = zip(row, rooms, strict=True)
            # Text, since brackets in tokens are not rich's markup.
            table.add_row(*(Text(packed(x.split("  "), room) if room else x) for x, room in cells))
        yield table

    def _rooms(self, width: int) -> list[int | None]:
        """Widths of the columns whose cells are units with two spaces between; None of others."""
        columns = [[name, *cells] for name, *cells in zip(self.head, *self.rows, strict=True)]
        widths = [max(map(cell_len, cells)) for cells in columns]
        rooms: list[int | None] = []
        for cells, own in zip(columns, widths, strict=True):
            units = [cell_len(unit) for cell in cells[1:] for unit in cell.split("  ")]
            others = sum(min(x, MAX_OTHER) + GAP for x in widths) - min(own, MAX_OTHER) - GAP
            is_packed = any("  " in cell.strip() for cell in cells[1:])
            fits = max(max(units, default=0), width - others)
            rooms.append(min(own, fits) if is_packed else None)
        return rooms


def plain_table() -> rich.table.Table:
    """Create a table without lines for a terminal."""
    padding = (0, GAP, 0, 0)
    return rich.table.Table(box=None, header_style="bold", pad_edge=False, padding=padding)
