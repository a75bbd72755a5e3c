"""Drawing tools: figures in one style, heat maps, tables, and HTML pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qkv.inspect.draw.heat_map import HeatMap
from qkv.inspect.draw.style import COLOURS, DIVERGING, MARKERS, caption, new_figure, styled
from qkv.inspect.draw.table import Table

if TYPE_CHECKING:
    from qkv.inspect.draw.figure import save_figure

__all__ = [
    "COLOURS",
    "DIVERGING",
    "MARKERS",
    "HeatMap",
    "Table",
    "caption",
    "new_figure",
    "save_figure",
    "styled",
]


def __getattr__(name: str) -> Any:
    """Import `save_figure` when first asked for, since it needs matplotlib."""
    if name != "save_figure":
        raise AttributeError(f"module 'qkv.inspect.draw' has no attribute {name!r}")
    from qkv.inspect.draw.figure import save_figure

    return save_figure
