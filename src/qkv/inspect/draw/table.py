"""Plain tables, as HTML and in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import rich.table
from markupsafe import Markup
from rich.text import Text

from qkv.inspect.draw.page import piece


@dataclass(frozen=True)
class Table:
    """Rows of cells under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def html(self) -> Markup:
        """Return an HTML table."""
        return piece("table", self.title, self.head, self.rows)

    def text(self, width: int) -> Iterator[rich.table.Table]:
        """Yield a table that wraps long cells."""
        table = plain_table()
        for name in self.head:
            table.add_column(name, overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))  # brackets in tokens are not rich's markup
        yield table


def plain_table() -> rich.table.Table:
    """Create a table without lines for a terminal."""
    return rich.table.Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
