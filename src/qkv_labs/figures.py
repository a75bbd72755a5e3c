"""What the figures of several labs share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from qkv.inspect.draw import COLOURS, DIVERGING, MARKERS, new_figure, styled
from qkv_labs.tools import mean_and_spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when a figure is drawn

__all__ = [
    "COLOURS",
    "DIVERGING",
    "GREY",
    "MARKERS",
    "Figure",
    "error_bars",
    "look",
    "new_figure",
    "styled",
    "ticks",
]

GREY = "#999999"


def look(index: int, **options: Any) -> dict[str, Any]:
    """Return the colour and marker of the line number `index`, and further options."""
    return {"color": COLOURS[index], "marker": MARKERS[index], **options}


def error_bars(
    axes: Any,
    x: Sequence[float],
    samples: Iterable[Sequence[float]],
    index: int,
    label: str,
    scale: float = 1,
) -> None:
    """Draw the mean and spread of a sample at each x."""
    points = [mean_and_spread([scale * value for value in sample]) for sample in samples]
    means, spreads = zip(*points, strict=True)
    axes.errorbar(x, means, spreads, capsize=3, label=label, **look(index))


def ticks(axes: Any, values: Sequence[float]) -> None:
    """Label these values on the x axis, and no others."""
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
