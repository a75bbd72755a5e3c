"""Panels that several figures have: who sees whom, and layers by heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.inspect.draw.heat_map import HeatMap, turn_labels
from qkv.inspect.draw.labels import clipped, visible
from qkv.inspect.draw.language import localized
from qkv.inspect.draw.style import ATTENTION, HATCH, MASK, array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST_NAME = 12  # terminal cells of a token at an axis


def draw_visibility(
    axes: Axes, allowed: Any, rows: Sequence[str], columns: Sequence[str], signs: Sequence[str] = ()
) -> None:
    """Fill the cells that a row's token may see, hatch the others; `signs` are written in them."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    seen: dict[str, Any] = {"facecolor": ATTENTION, "alpha": 0.45, "linewidth": 0}
    shut: dict[str, Any] = {"facecolor": MASK, "edgecolor": HATCH, "hatch": "////", "linewidth": 0}
    cells = array(allowed) != 0
    for places, fill in ((np.argwhere(cells), seen), (np.argwhere(~cells), shut)):
        squares = [Path.unit_rectangle().transformed(_cell(*place)) for place in places]
        if squares:
            axes.add_patch(PathPatch(Path.make_compound_path(*squares), **fill))
    if signs:
        for (row, column), cell in np.ndenumerate(cells):
            axes.text(column, row, signs[not cell], ha="center", va="center", fontsize=7)
    for axis, names in ((axes.xaxis, columns), (axes.yaxis, rows)):
        shown = [clipped(visible(name), LONGEST_NAME) for name in names]
        axis.set_ticks(range(len(names)), shown, fontsize=7, parse_math=False)
    turn_labels(axes.xaxis)
    axes.tick_params(length=0)


def _cell(row: int, column: int) -> Any:
    """Move the unit square to a cell, with a gap around it."""
    from matplotlib.transforms import Affine2D

    return Affine2D().scale(0.94).translate(column - 0.47, row - 0.47)


def map_by_head(values: Any, title: str, value: str, strongest: float) -> HeatMap:
    """A heat map of scores (layers, heads); `strongest` has the strongest colour."""
    down, across = ([str(i) for i in range(count)] for count in values.shape)
    return HeatMap(
        values, down, across, title, value=value, down="layer", across="head", strongest=strongest
    )


def draw_by_head(axes: Axes, values: Any, title: str, **scale: Any) -> Any:
    """Draw scores (layers, heads) in one panel; returns the image."""
    n_layers, n_heads = values.shape
    axes.set_title(title)
    axes.set_xlabel(localized("head"))
    axes.grid(False)
    axes.set_xticks(range(0, n_heads, max(1, n_heads // 8)))
    axes.set_yticks(range(0, n_layers, max(1, n_layers // 10)))
    return axes.imshow(array(values), aspect="auto", **scale)
