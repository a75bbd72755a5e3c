"""Heat maps with tokens on both axes: as a figure, as HTML tables, in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from rich.cells import cell_len, set_cell_size
from rich.console import RenderableType
from rich.text import Text

from qkv.inspect.draw.labels import clipped, decimal, upright, visible
from qkv.inspect.draw.language import localized
from qkv.inspect.draw.page import piece
from qkv.inspect.draw.style import (
    ATTENTION,
    CHANGE,
    DIVERGING,
    HATCH,
    MASK,
    SEQUENTIAL,
    Numbers,
    array,
    caption,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_LABEL = 16  # terminal cells; a Chinese character takes two
ABREAST = 8  # heads of a single layer in one row of panels
VALUES_SHOWN = 150  # cells up to which a single map shows its numbers
SMALLEST_TYPE = 5.0  # points
IN_TERMINAL = 32  # tokens along an axis; of longer texts the last tokens are shown
NARROW_HEAD = 8  # letters below each other over a narrow column
BLOCKS = " ░▒▓█"
MUCH = 0.7  # share of the strongest colour above which type on it is light
# Where the largest value is more than OUTLYING times the median of the rows' largest ones, colours
# end at STRONGEST times that median.
OUTLYING, STRONGEST = 6.0, 3.0


@dataclass(frozen=True)
class HeatMap:
    """Maps (T, S), (H, T, S) or (L, H, T, S) in one colour scale; rows look at columns.

    Cells that `allowed` (True: may be seen) shuts, or that are −∞ or NaN, are shown as masked. A
    row of outliers does not pale all others: colours end at `limit`, and a note says so.
    """

    values: Any
    rows: Sequence[str]
    columns: Sequence[str]
    title: str = ""
    names: Sequence[str] = ("",)  # of the maps, layer by layer
    allowed: Any = None
    value: str = "attention weight"
    down: str = "query"  # what a row is
    across: str = "key"  # what a column is
    strongest: float | None = None  # value of the strongest colour, to compare maps; else its own

    @cached_property
    def cells(self) -> Numbers:
        """Values as (maps, T, S)."""
        values = array(self.values)
        shape = (len(self.names), len(self.rows), len(self.columns))
        if values.shape[-2:] != shape[1:] or values.size != math.prod(shape):
            raise ValueError(f"{shape} maps × rows × columns named, {values.shape} given")
        return values.reshape(shape)

    @cached_property
    def shut(self) -> Any:
        """Which cells are masked, (maps, T, S)."""
        shut = ~np.isfinite(self.cells)
        if self.allowed is None:
            return shut
        seen = np.broadcast_to(array(self.allowed) != 0, np.shape(self.values))
        return shut | ~seen.reshape(shut.shape)

    @property
    def limit(self) -> float:
        """The absolute value of the strongest colour."""
        if self.strongest is not None:
            return self.strongest
        return robust_limit(np.where(self.shut, 0.0, self.cells))

    @property
    def clipping(self) -> str:
        """A note about cells that are beyond the strongest colour; else nothing."""
        return clipping_note(np.where(self.shut, 0.0, self.cells), self.limit)

    @property
    def n_across(self) -> int:
        """Panels side by side: all heads of a layer, unless it is one layer with many heads."""
        if np.ndim(self.values) == 4 and (len(self.values) > 1 or len(self.names) <= ABREAST):
            return len(self.values[0])
        return _across(len(self.names))

    def draw(self) -> Figure:
        """Draw a panel per map, a row of panels per layer; a single small map shows its numbers."""
        values, shut = self.cells, self.shut
        n_maps, n_rows, n_columns = values.shape
        across = self.n_across
        down = math.ceil(n_maps / across)
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
            # Weights from 0 up in one hue; scores, which may be negative, symmetric around 0.
            most, signed = self.limit, values[~shut].min(initial=0) < 0
            scale = {
                "cmap": DIVERGING if signed else SEQUENTIAL,
                "vmin": -most * signed,
                "vmax": most,
            }
            for axes, panel, closed, name in zip(grid.flat, values, shut, self.names, strict=False):
                image = draw_panel(axes, panel, closed, scale, name)
            names = localized(self.down), localized(self.across)
            _label_outside(grid, n_maps, *names, _labels(self.rows), _labels(self.columns), cell)
            if n_maps == 1 and values.size <= VALUES_SHOWN:
                _write_values(grid[0, 0], values[0], shut[0], image)
            figure.colorbar(
                image, ax=grid, label=localized(self.value), shrink=0.85, aspect=30, pad=0.02
            )
            hatched = localized("Hatched: the query may not see this key (masked).")
            caption(figure, self.title, hatched if shut.any() else "", self.clipping)
        return figure

    def html(self) -> Markup:
        """Return a table per map; each cell shows its value under the mouse."""
        rows, columns = list(map(visible, self.rows)), list(map(visible, self.columns))
        strongest, few = self.limit, self.cells[0].size <= VALUES_SHOWN

        def cell(row: str, column: str, value: float, masked: bool) -> dict[str, str]:
            if masked:
                return {"marks": "shut", "hint": f"{row} → {column}: {localized('masked')}"}
            share = min(1.0, abs(value) / strongest)
            return {
                "marks": " ".join(["minus"] * (value < 0) + ["much"] * (share > MUCH)),
                "share": f"{share:.0%}",
                "hint": f"{row} → {column}: {decimal(value, '.4g')}",
                "text": decimal(value) if few else "",
            }

        maps = [
            (
                name,
                [
                    (row, [cell(row, *each) for each in zip(columns, line, masked, strict=True)])
                    for row, line, masked in zip(rows, values.tolist(), shut.tolist(), strict=True)
                ],
            )
            for name, values, shut in zip(self.names, self.cells, self.shut, strict=True)
        ]
        return piece("heat_maps", self.title, columns, maps, few, self.n_across, self.clipping)

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield each map in shaded blocks below its title; of a long text, the last tokens."""
        last = slice(-IN_TERMINAL, None)
        cut = max(len(self.rows), len(self.columns)) > IN_TERMINAL
        for name, values, shut in zip(self.names, self.cells, self.shut, strict=True):
            title = self.title or name
            if self.title and name:
                title = localized("{title}, {name}", title=self.title, name=name)
            last_ones = localized("(the last {count} tokens)", count=IN_TERMINAL)
            title = f"{title} {last_ones}".strip() if cut else title
            if title:
                yield Text(title, style="italic")
            yield shaded(
                values[last, last],
                shut[last, last],
                self.rows[last],
                self.columns[last],
                width,
                self.strongest,
            )
            yield ""
        if self.clipping:
            yield Text(self.clipping, style="dim")


def robust_limit(values: Numbers) -> float:
    """The largest absolute value, unless few rows (…, rows, columns) are far above the others."""
    largest = np.abs(values).max(axis=-1, initial=0).ravel()
    largest = largest[largest > 0]
    if not len(largest):
        return 1.0
    usual, most = float(np.median(largest)), float(largest.max())
    return most if most <= OUTLYING * usual else STRONGEST * usual


def clipping_note(values: Numbers, limit: float) -> str:
    """A note about values beyond a limit of colours; else nothing."""
    sizes = np.abs(values)
    count = int((sizes > limit * (1 + 1e-9)).sum())
    if not count:
        return ""
    return localized(
        "Colours end at {limit:.3g}; {count} cells are beyond, up to {most:.3g}.",
        limit=limit,
        count=count,
        most=float(sizes.max()),
    )


def _labels(tokens: Sequence[str]) -> list[str]:
    return [clipped(visible(token), LONGEST_LABEL) for token in tokens]


def _across(count: int) -> int:
    """Number of panels side by side: up to four, with a full last row if possible."""
    return count if count <= 4 else next((n for n in (4, 3) if count % n == 0), 4)


def _cell_inches(tokens: int, panels_in_line: int) -> float:
    """Width of a cell: small figures do not sprawl, and large ones stay within a screen."""
    room = 9.5 if panels_in_line == 1 else max(1.3, min(3.6, 15 / panels_in_line))
    return min(0.6 if panels_in_line == 1 else 0.32, room / tokens)


def draw_panel(
    axes: Axes, values: Numbers, shut: Any, scale: dict[str, Any], name: str = ""
) -> Any:
    """Draw one map with masked cells hatched; returns the image."""
    axes.grid(False)
    axes.spines[:].set_visible(False)
    # Masked cells are not drawn, so that the hatched background shows through.
    if np.any(shut):
        axes.patch.set(facecolor=MASK, edgecolor=HATCH, hatch="/////", linewidth=0)
    if name:
        axes.set_title(name, fontsize=8, pad=3)
    image = np.ma.masked_array(values, shut)
    return axes.imshow(image, aspect="auto", **scale)


def _label_outside(
    grid: Any, count: int, down: str, across: str, rows: list[str], columns: list[str], cell: float
) -> None:
    """Label and name the outer axes alone, and the lowest panel of each column."""
    for number, axes in enumerate(grid.flat):
        if number >= count:
            axes.set_visible(False)
            continue
        _ticks(axes.xaxis, columns, cell, turn=True)
        _ticks(axes.yaxis, rows, cell, turn=False)
        lowest, leftmost = number + grid.shape[1] >= count, number % grid.shape[1] == 0
        axes.tick_params(length=0, labelbottom=lowest, labelleft=leftmost)
        axes.set(xlabel=across if lowest else "", ylabel=down if leftmost else "")


def _ticks(axis: Any, labels: list[str], cell: float, turn: bool) -> None:
    """Write every label, or every second, third … if they would overlap."""
    points = cell * 72
    step = max(1, math.ceil(SMALLEST_TYPE * 1.2 / points))
    size = min(9.0, max(SMALLEST_TYPE, points * 0.75))
    axis.set_ticks(range(0, len(labels), step), labels[::step], fontsize=size, parse_math=False)
    widest = max(map(cell_len, labels), default=0) * size * 0.62
    if turn and widest > points * step * 0.95:
        turn_labels(axis)


def turn_labels(axis: Any) -> None:
    """Write labels upwards; Chinese characters stay upright, one below the other."""
    texts = [upright(label.get_text()) for label in axis.get_ticklabels()]
    axis.set_ticks(axis.get_majorticklocs(), texts, linespacing=1.0, parse_math=False)
    for label in axis.get_ticklabels():
        if len(label.get_text()) > 1 and "\n" not in label.get_text():
            label.set(rotation=90, ha="right", va="center", rotation_mode="anchor")


def _write_values(axes: Axes, values: Numbers, shut: Any, image: Any) -> None:
    for (row, column), value in np.ndenumerate(values):
        if not shut[row, column]:
            red, green, blue, _ = image.cmap(image.norm(value))
            colour = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "black"
            text = decimal(value)
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)


def shaded(
    values: Numbers,
    shut: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    width: int,
    strongest: float | None = None,
) -> Text:
    """Draw a map in shaded blocks: darker for more, · for masked cells.

    Columns that do not fit side by side continue in further bands below.
    """
    most = strongest or robust_limit(np.where(shut, 0.0, values))
    left, heads = _labels(rows), _labels(columns)
    margin = max(map(cell_len, left), default=0) + 1
    room = max(4, width - margin)
    digits = max((len(decimal(value)) for value in values[~shut]), default=0)
    wide = max([digits + 4, *(cell_len(head) + 2 for head in heads)])
    numbers = wide * len(heads) <= room  # shown if there is room
    step = wide if numbers else 2
    band = max(1, room // step)
    text = Text(no_wrap=True, overflow="crop")
    for start in range(0, len(heads), band):
        part = slice(start, start + band)
        _write_heads(text, heads[part], margin, step, upright=not numbers)
        for label, line, closed in zip(left, values[:, part], shut[:, part], strict=True):
            text.append(" " * (margin - 1 - cell_len(label)) + label + " ")
            for value, no in zip(line, closed, strict=True):
                _write_cell(text, float(value), bool(no), most, step)
            text.append("\n")
    text.rstrip()
    return text


def _write_heads(text: Text, heads: list[str], margin: int, step: int, upright: bool) -> None:
    """Write column heads in one line, or letter below letter over narrow columns."""
    lines = ["".join(set_cell_size(head, step) for head in heads)]
    if upright:
        heads = [
            head if len(head) <= NARROW_HEAD else f"{head[: NARROW_HEAD - 1]}…" for head in heads
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
    text.append(BLOCKS[level] * min(step, 2), style=ATTENTION if value >= 0 else CHANGE)
    if step > 2:
        text.append(set_cell_size(f" {decimal(value)}", step - 2), style="dim")
