"""Positions to look at: the table that is added to embeddings, and what its rows share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.inspect.style import DIVERGING, Numbers, array, caption, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def dot_products(table: Any) -> Numbers:
    """How much each position's vector is like each other's: P·Pᵀ, (n, n)."""
    values = array(table)
    return values @ values.T


def draw_positions(table: Any, title: str = "") -> Figure:
    """The table (n, D) on the left, and the dot products of its rows (n, n) on the right."""
    values = array(table)
    if values.ndim != 2:
        raise ValueError(f"a table of positions is (n, D), not {values.shape}")
    with styled():
        figure, (left, right) = new_figure(9.6, 4.2, ncols=2, width_ratios=(1.25, 1))
        _heat(left, values, "value", f"The table: {len(values)} positions × {values.shape[1]}")
        left.set(xlabel="dimension", ylabel="position")
        _heat(right, dot_products(values), "dot product", "Each position with each other")
        right.set(xlabel="position", ylabel="position")
        right.set_box_aspect(1)
        caption(figure, title)
    return figure


def _heat(axes: Axes, values: Numbers, name: str, title: str) -> None:
    from matplotlib.ticker import MaxNLocator

    most = float(np.abs(values).max(initial=0)) or 1.0
    image = axes.imshow(
        values, cmap=DIVERGING, vmin=-most, vmax=most, aspect="auto", interpolation="nearest"
    )
    axes.grid(False)
    axes.set_title(title)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(8, integer=True))
    axes.figure.colorbar(image, ax=axes, label=name, shrink=0.85, pad=0.02)
