"""Style of figures: what each colour means in light and dark, one type size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkv.inspect.draw.fonts import accept_regular_weight, families
from qkv.inspect.draw.labels import wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

Numbers = NDArray[np.float64]

# What a colour means, in every figure and page. The hues are Okabe and Ito's, which colour-blind
# readers can tell apart.
QUERY, KEY, VALUE, ATTENTION, CHANGE = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
INK, SOFT, LINE = "#1a1a1a", "#555555", "#b0b0b0"  # type and the residual stream; notes; frames
MASK, HATCH = "#eeeeee", "#aaaaaa"
# Unlike pure white and black, which are type on a map's cells, so that dark pages can tell them.
PAPER, ON_BAR = "#fefefe", "#fcfcfc"
COLOURS = (QUERY, KEY, VALUE, ATTENTION, CHANGE, "#56B4E9", "#333333", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # so that lines differ without colour too
SEQUENTIAL = "qkv"  # from little to much, through the colour of attention
SEQUENCE = ("#ffffff", "#edd0e1", ATTENTION, "#8f3f6d", "#3d0f2b")
DIVERGING = "PuOr"  # from negative through zero to positive
BELOW, ABOVE = "#b35806", "#542788"  # two of its colours, for bars
# In a dark page these colours of a figure become others; maps are inverted, hues kept.
DARK = {INK: "#e8e8e8", SOFT: "#a8a8a8", LINE: "#5a5e66", PAPER: "#16181c", "#333333": "#d0d0d0"}
DARK_TYPE = {QUERY: "#6cb8ea", KEY: "#ff9a5c", VALUE: "#3fcfa6"}  # these are too dark as type
DARK |= {BELOW: "#e08a3c", ABOVE: "#b39ddb"}
DARK |= {MASK: "#2a2d33", HATCH: "#5a5e66"}

STYLE: dict[str, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.color": "#808080",
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.facecolor": "none",
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.color": SOFT,
    "ytick.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "font.size": 9,
    "image.interpolation": "none",  # an SVG holds a map's own cells and no enlarged picture of them
    "legend.fontsize": 8,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "svg.fonttype": "none",
    "svg.hashsalt": "qkv",
}


@contextmanager
def styled() -> Iterator[None]:
    """Apply the style inside this block, with a font for Chinese if there is one."""
    import matplotlib
    from cycler import cycler

    _register_maps()
    accept_regular_weight()
    cycle = cycler(color=COLOURS)
    settings: Any = {**STYLE, "axes.prop_cycle": cycle, "font.family": families()}
    with matplotlib.rc_context({**settings, "image.cmap": SEQUENTIAL}):
        yield


@cache
def _register_maps() -> None:
    """Make the sequential colour map known to matplotlib."""
    import matplotlib
    from matplotlib.colors import LinearSegmentedColormap

    matplotlib.colormaps.register(LinearSegmentedColormap.from_list(SEQUENTIAL, SEQUENCE))


def new_figure(width: float = 7.2, height: float = 3.6, **subplots: Any) -> tuple[Figure, Any]:
    """Create a figure, unknown to pyplot, and its axes (`subplots` as in matplotlib)."""
    from qkv.inspect.draw.figure import PortableFigure

    figure = PortableFigure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**subplots)


def caption(figure: Figure, title: str, *notes: str) -> None:
    """Put a title above and notes in small type below, wrapped to the figure's width."""
    width = figure.get_figwidth()
    if title:
        head = wrapped(title, max(24, int(width * 11)))
        figure.suptitle(head, fontsize=11, parse_math=False)
    if note := " ".join(filter(None, notes)):
        foot = wrapped(note, max(36, int(width * 18)))
        figure.supxlabel(foot, x=0.01, ha="left", fontsize=7, color=SOFT, parse_math=False)


def line_style(number: int) -> dict[str, Any]:
    """Colour and marker of a line or a group of points, by its number in the figure."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def legend(figure: Figure | SubFigure, *entries: Any, **settings: Any) -> None:
    """Add a legend outside of the axes; a label with two dollars is no formula."""
    for label in figure.legend(*entries, **settings).get_texts():
        label.set_parse_math(False)


def array(values: Any) -> Numbers:
    """Convert a list, an array, or a tensor of any type and device to numpy."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)
