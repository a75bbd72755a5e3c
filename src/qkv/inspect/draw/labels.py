"""Labels of tokens: spaces made visible, cut to a width."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size

SPACES = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥", "\r": "↵", "\u3000": "␣"})


def visible(token: str) -> str:
    """Show a token's spaces and line ends as symbols, so that no label is blank."""
    return token.translate(SPACES) or "∅"


def clipped(label: str, cells: int) -> str:
    """Cut a label to a number of terminal cells, with … where something was cut."""
    return label if cell_len(label) <= cells else set_cell_size(label, cells - 1).rstrip() + "…"
