"""Attention maps: who looks at whom, as a figure and as shaded blocks for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from qkv.inspect.fonts import drawable, visible
from qkv.inspect.style import DIVERGING, SEQUENTIAL, Numbers, array, caption, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_LABEL = 16  # terminal cells; a Chinese character takes two
VALUES_SHOWN = 150  # cells up to which a single map shows its numbers
SMALLEST_TYPE = 5.0  # points

NARROW_HEAD = 8  # letters under each other above a narrow column
BLOCKS = " ░▒▓█"
RAMP = ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725")  # viridis, one for each block


def draw_map(
    weights: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    *,
    allowed: Any = None,
    value: str = "attention weight",
    viewer_fonts: bool = False,
) -> Figure:
    """One map (T, S): queries down, keys across; numbers in the cells where they fit.

    Cells that `allowed` (True: may be seen) or a −∞ shuts are hatched.
    """
    values = array(weights)[None]
    return _draw(values, [""], 1, rows, columns, title, allowed, value, viewer_fonts)


def draw_maps(
    weights: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    *,
    allowed: Any = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    value: str = "attention weight",
    viewer_fonts: bool = False,
) -> Figure:
    """Maps (L, H, T, S), a row of panels a layer, or (H, T, S), in one scale of colours."""
    values, names = panels(weights, layers, heads)
    n_layers, n_heads = values.shape[:2]
    across = n_heads if n_layers > 1 else _across(n_heads)
    flat = values.reshape(-1, *values.shape[2:])
    if allowed is not None:
        allowed = np.broadcast_to(array(allowed), values.shape).reshape(flat.shape)
    every = [name for layer in names for name in layer]
    return _draw(flat, every, across, rows, columns, title, allowed, value, viewer_fonts)


def panels(
    weights: Any, layers: Sequence[int] | None, heads: Sequence[int] | None
) -> tuple[Numbers, list[list[str]]]:
    """Weights as (L, H, T, S), and a name for each panel."""
    values = array(weights)
    named = values.ndim == 4  # without layers, a panel is named by its head alone
    values = values if named else values[None]
    layers = range(len(values)) if layers is None else layers
    heads = range(values.shape[1]) if heads is None else heads
    prefix = "layer {}, " if named else ""
    names = [[f"{prefix.format(layer)}head {head}" for head in heads] for layer in layers]
    if values.shape[:2] != (len(layers), len(heads)):
        raise ValueError(f"{len(layers)} layers × {len(heads)} heads named, {values.shape} given")
    return values, names


def shut_cells(values: Numbers, allowed: Any) -> Any:
    """True where a query may not see a key, or where there is no number (−∞ or NaN)."""
    shut = ~np.isfinite(values)
    return shut if allowed is None else shut | ~np.broadcast_to(array(allowed) != 0, values.shape)


def _draw(
    values: Numbers,
    names: list[str],
    across: int,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    allowed: Any,
    value: str,
    viewer_fonts: bool,
) -> Figure:
    n_rows, n_columns = values.shape[1:]
    if (n_rows, n_columns) != (len(rows), len(columns)):
        raise ValueError(f"{len(rows)} rows × {len(columns)} columns named, {values.shape} given")
    shut = shut_cells(values, allowed)
    labels = [clipped(visible(token), LONGEST_LABEL) for token in (*rows, *columns)]
    (*labels, title), note = drawable([*labels, title], viewer_fonts)
    down = math.ceil(len(values) / across)
    cell = _cell_inches(max(n_rows, n_columns), max(across, down))
    with styled():
        figure, grid = new_figure(
            max(3.2, across * max(0.7, n_columns * cell) + 0.25 * across + 2.0),
            max(2.4, down * max(0.7, n_rows * cell) + 0.3 * down + 1.4),
            nrows=down,
            ncols=across,
            squeeze=False,
            sharex=True,
            sharey=True,
        )
        scale = _scale(values[~shut])
        for axes, image, closed, name in zip(grid.flat, values, shut, names, strict=False):
            drawn = _panel(axes, image, closed, scale, name)
        _label_outside(grid, len(values), labels[:n_rows], labels[n_rows:], cell)
        if len(values) == 1 and values.size <= VALUES_SHOWN:
            _write_values(grid[0, 0], values[0], shut[0], drawn)
        figure.colorbar(drawn, ax=grid, label=value, shrink=0.85, aspect=30, pad=0.02)
        notes = [
            note or "",
            "Hatched: the query may not see this key (masked)." if shut.any() else "",
        ]
        caption(figure, title, " ".join(filter(None, notes)))
    return figure


def _across(count: int) -> int:
    """How many panels stand side by side: up to four, and a full last row where possible."""
    return count if count <= 4 else next((n for n in (4, 3) if count % n == 0), 4)


def _cell_inches(tokens: int, panels_in_line: int) -> float:
    """How wide a cell is: small figures do not sprawl, and large ones stay within a screen."""
    room = 9.5 if panels_in_line == 1 else max(1.3, min(3.6, 15 / panels_in_line))
    return min(0.6 if panels_in_line == 1 else 0.32, room / tokens)


def _scale(values: Numbers) -> dict[str, Any]:
    """Weights from 0 up in one hue; scores, which may be negative, from − to + around 0."""
    most = float(np.abs(values).max(initial=0)) or 1.0
    if values.min(initial=0) < 0:
        return {"cmap": DIVERGING, "vmin": -most, "vmax": most}
    return {"cmap": SEQUENTIAL, "vmin": 0.0, "vmax": most}


def _panel(axes: Axes, values: Numbers, shut: Any, scale: dict[str, Any], name: str) -> Any:
    axes.grid(False)
    axes.spines[:].set_visible(False)
    # what is masked is not drawn, so that the hatched ground shows through
    axes.patch.set(facecolor="#eeeeee", edgecolor="#aaaaaa", hatch="/////", linewidth=0)
    if name:
        axes.set_title(name, fontsize=8, pad=3)
    image = np.ma.masked_array(values, shut)
    return axes.imshow(image, aspect="auto", interpolation="nearest", **scale)


def _label_outside(grid: Any, count: int, rows: list[str], columns: list[str], cell: float) -> None:
    """Tokens on the outer axes alone; the lowest panel of each column carries them too."""
    across = grid.shape[1]
    for place, axes in enumerate(grid.flat):
        if place >= count:
            axes.set_visible(False)
            continue
        _ticks(axes.xaxis, columns, cell, turn=True)
        _ticks(axes.yaxis, rows, cell, turn=False)
        lowest = place + across >= count
        axes.tick_params(length=0, labelbottom=lowest, labelleft=place % across == 0)
        axes.set_xlabel("key" if lowest else "")
        axes.set_ylabel("query" if place % across == 0 else "")


def _ticks(axis: Any, labels: list[str], cell: float, turn: bool) -> None:
    """Every label, or every second, third … where they would run into each other."""
    points = cell * 72
    step = max(1, math.ceil(SMALLEST_TYPE * 1.2 / points))
    size = min(9.0, max(SMALLEST_TYPE, points * 0.75))
    places = range(0, len(labels), step)
    axis.set_ticks(places, labels[::step], fontsize=size, parse_math=False)
    widest = max(map(cell_len, labels), default=0) * size * 0.62
    if turn and widest > points * step * 0.95:
        for label in axis.get_ticklabels():
            if len(label.get_text()) > 1:  # a single Chinese character stays upright
                label.set(rotation=90, ha="right", va="center", rotation_mode="anchor")


def _write_values(axes: Axes, values: Numbers, shut: Any, image: Any) -> None:
    for (row, column), value in np.ndenumerate(values):
        if not shut[row, column]:
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
            colour = "white" if dark else "black"
            text = f"{value:.2f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)


def clipped(label: str, cells: int) -> str:
    """A label cut to a number of terminal cells, with … where something was cut."""
    return label if cell_len(label) <= cells else set_cell_size(label, cells - 1).rstrip() + "…"


def shaded(
    weights: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    width: int = 80,
    allowed: Any = None,
) -> Text:
    """A map for a terminal of so many cells: darker blocks for more, · for what is masked.

    Where all columns do not fit side by side, they go on in further bands below.
    """
    values = array(weights)
    shut = shut_cells(values, allowed)
    most = float(np.abs(values[~shut]).max(initial=0)) or 1.0
    left = [clipped(visible(row), LONGEST_LABEL) for row in rows]
    heads = [clipped(visible(column), LONGEST_LABEL) for column in columns]
    margin = max(map(cell_len, left), default=0) + 1
    room = max(4, width - margin)
    digits = max((len(f"{value:.2f}") for value in values[~shut]), default=0)
    wide = max([digits + 4, *(cell_len(head) + 2 for head in heads)])
    numbers = wide * len(heads) <= room  # with their values where there is room
    step = wide if numbers else 2
    band = max(1, room // step)
    text = Text(no_wrap=True, overflow="crop")
    for start in range(0, len(heads), band):
        part = slice(start, start + band)
        _write_heads(text, heads[part], margin, step, upright=numbers)
        for label, line, closed in zip(left, values[:, part], shut[:, part], strict=True):
            text.append(" " * (margin - 1 - cell_len(label)) + label + " ")
            for value, no in zip(line, closed, strict=True):
                _write_cell(text, float(value), bool(no), most, step)
            text.append("\n")
    text.rstrip()
    return text


def _write_heads(text: Text, heads: list[str], margin: int, step: int, upright: bool) -> None:
    """Column heads: in one line, or letter under letter where columns are narrow."""
    if upright:
        lines = ["".join(set_cell_size(head, step) for head in heads)]
    else:
        heads = [
            head if len(head) <= NARROW_HEAD else head[: NARROW_HEAD - 1] + "…" for head in heads
        ]
        tall = max(map(len, heads))
        grid = [head.rjust(tall) for head in heads]
        lines = ["".join(set_cell_size(head[i], step) for head in grid) for i in range(tall)]
    for line in lines:
        text.append(" " * margin + line.rstrip() + "\n")


def _write_cell(text: Text, value: float, shut: bool, most: float, step: int) -> None:
    if shut:
        text.append(set_cell_size("·", step), style="dim")
        return
    level = min(4, math.ceil(abs(value) / most * 4 - 0.5))
    style = RAMP[level] if value >= 0 else "red"
    text.append(BLOCKS[level] * min(step, 2), style=style)
    if step > 2:
        text.append(set_cell_size(f" {value:.2f}", step - 2), style="dim")
