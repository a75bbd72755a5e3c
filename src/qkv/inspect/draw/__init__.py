"""Drawing tools: figures in one style, heat maps, tables, and HTML pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qkv.inspect.draw.heat_map import HeatMap, clipping_note, robust_limit
from qkv.inspect.draw.labels import clipped, decimal, visible
from qkv.inspect.draw.language import localized
from qkv.inspect.draw.page import page, piece
from qkv.inspect.draw.style import (
    ATTENTION,
    CHANGE,
    COLOURS,
    DIVERGING,
    INK,
    KEY,
    MARKERS,
    ON_BAR,
    PAPER,
    QUERY,
    SEQUENTIAL,
    SOFT,
    VALUE,
    Numbers,
    array,
    caption,
    new_figure,
    styled,
)
from qkv.inspect.draw.table import Table

if TYPE_CHECKING:
    from qkv.inspect.draw.figure import save_figure

__all__ = [
    "ATTENTION",
    "CHANGE",
    "COLOURS",
    "DIVERGING",
    "INK",
    "KEY",
    "MARKERS",
    "ON_BAR",
    "PAPER",
    "QUERY",
    "SEQUENTIAL",
    "SOFT",
    "VALUE",
    "HeatMap",
    "Numbers",
    "Table",
    "array",
    "caption",
    "clipped",
    "clipping_note",
    "decimal",
    "localized",
    "new_figure",
    "page",
    "piece",
    "robust_limit",
    "save_figure",
    "styled",
    "visible",
]


def __getattr__(name: str) -> Any:
    """Import `save_figure` when first asked for, since it needs matplotlib."""
    if name != "save_figure":
        raise AttributeError(f"module 'qkv.inspect.draw' has no attribute {name!r}")
    from qkv.inspect.draw.figure import save_figure

    return save_figure
