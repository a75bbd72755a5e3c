"""Drawing tools: figures in one style, heat maps, tables, and HTML pages.

`figure.save_figure` writes figures; it is imported from there, since it needs matplotlib.
"""

from qkv.inspect.draw.heat_map import HeatMap
from qkv.inspect.draw.labels import clipped, visible
from qkv.inspect.draw.page import page, piece
from qkv.inspect.draw.style import (
    COLOURS,
    DIVERGING,
    MARKERS,
    SEQUENTIAL,
    Numbers,
    array,
    caption,
    new_figure,
    styled,
)
from qkv.inspect.draw.table import Table

__all__ = [
    "COLOURS",
    "DIVERGING",
    "MARKERS",
    "SEQUENTIAL",
    "HeatMap",
    "Numbers",
    "Table",
    "array",
    "caption",
    "clipped",
    "new_figure",
    "page",
    "piece",
    "styled",
    "visible",
]
