"""Masks: which keys each query may see, as a boolean matrix and as what is added to scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from markupsafe import Markup
from rich.cells import cell_len, set_cell_size
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from qkv.inspect.answers.answer import Answer, View, the_trace
from qkv.inspect.answers.attention import NAMES, own_kinds
from qkv.inspect.draw.labels import clipped, visible
from qkv.inspect.draw.language import localized
from qkv.inspect.draw.panels import draw_visibility
from qkv.inspect.draw.style import caption, new_figure
from qkv.inspect.draw.table import Table
from qkv.inspect.trace.inputs import SIDES
from qkv.inspect.trace.trace import Trace
from qkv.model import Layout
from qkv.model.mask import cross_mask, self_mask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PADDING = "<pad>"
MAX_SHOWN = 24  # tokens of a matrix; of more, the first ones
MAX_TEXTS = 3  # whose matrices are shown
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Matrix:
    """One mask: True where the query of a row may see the key of a column."""

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    allowed: Tensor  # (T, S) bool
    group: str = ""  # masks of one attention, of which a figure shows one

    @property
    def additive(self) -> Tensor:
        """M: 0 where a query may see a key, else −∞."""
        return torch.zeros(self.allowed.shape).masked_fill(~self.allowed, float("-inf"))


@dataclass(frozen=True)
class Masks(Answer):
    """The masks of a pass, attention by attention and text by text."""

    matrices: tuple[Matrix, ...]

    def numbers(self) -> Any:
        """Return the boolean matrices, and the additive ones with null for −∞."""
        return [
            {
                "name": x.name,
                "rows": list(x.rows),
                "columns": list(x.columns),
                "boolean": x.allowed.tolist(),
                "additive": [[0.0 if cell else None for cell in row] for row in x.allowed.tolist()],
            }
            for x in self.matrices
        ]

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield each mask as 1 and 0, and beside it as 0 and −∞ where there is room."""
        for matrix in self.matrices:
            yield Text(matrix.name, style="italic")
            boolean = _grid(matrix, "1", "0")
            additive = _grid(matrix, "0", "−∞", labelled=False)
            both = [f"{a}     {b}" for a, b in zip(boolean, additive, strict=True)]
            fits = max(map(cell_len, both)) <= width
            lines = both if fits else [*boolean, "", *_grid(matrix, "0", "−∞")]
            yield Text("\n".join(lines), no_wrap=True, overflow="crop")
            yield ""

    def html(self) -> Markup:
        """Return a table per mask and form."""
        parts = Markup()
        for matrix in self.matrices:
            head = ("", *map(visible, matrix.columns))
            for form, (yes, no) in (("boolean", ("1", "0")), ("M, additive", ("0", "−∞"))):
                rows = [
                    (visible(name), *(yes if cell else no for cell in line))
                    for name, line in zip(matrix.rows, matrix.allowed.tolist(), strict=True)
                ]
                title = localized("{title} ({form})", title=matrix.name, form=localized(form))
                parts += Table(head, rows, title).html()
        return parts

    @property
    def drawn(self) -> list[Matrix]:
        """One mask per attention, of a text with padding if there is one."""
        groups = dict.fromkeys(matrix.group for matrix in self.matrices)
        of_group = [[x for x in self.matrices if x.group == group] for group in groups]
        return [max(same, key=lambda matrix: PADDING in matrix.columns) for same in of_group]

    def figure(self) -> Figure:
        """Draw a row of panels per attention: boolean on the left, additive on the right."""
        matrices = self.drawn
        tall = [max(0.9, 0.24 * len(matrix.rows)) for matrix in matrices]
        wide = max(0.3 * len(matrix.columns) for matrix in matrices)
        figure, grid = new_figure(
            max(6.0, 2 * wide + 2.6),
            sum(tall) + 0.75 * len(tall) + 0.9,
            nrows=len(tall),
            ncols=2,
            squeeze=False,
            height_ratios=tall,
        )
        for (left, right), matrix in zip(grid, matrices, strict=True):
            for axes, signs in ((left, ("1", "0")), (right, ("0", "−∞"))):
                draw_visibility(axes, matrix.allowed, matrix.rows, matrix.columns, signs)
            left.set_title(matrix.name, fontsize=9, loc="left")
        note = "Left: may the query (row) see the key (column)? Right: M, added to scores."
        caption(figure, localized("What each token may see"), localized(note))
        return figure


def masks(trace: Trace) -> Masks:
    """Draw the masks of each attention, of each text, and of all texts packed end to end."""
    found: list[Matrix] = []
    for kind in own_kinds(trace).values():
        found += _of_kind(trace, kind)
    if trace.inputs.n_rows > 1:
        found += _packed(trace)
    return Masks(tuple(found))


def _of_kind(trace: Trace, kind: str) -> Iterator[Matrix]:
    """The mask of one kind of attention for each text, padding included."""
    stack, _, name = kind.partition(".")
    key = f"{stack}.0.{name}.scores"
    allowed = ~trace.peek([key], head=0)[key].isneginf().cpu()
    for row in range(min(MAX_TEXTS, trace.inputs.n_rows)):
        queries = _names(trace, SIDES[stack], row)
        keys = queries if name == "self_attention" else _names(trace, "source", row)
        causal = getattr(trace.model, stack).causal and name == "self_attention"
        seen = "padding is hidden" if PADDING in keys else "everything is visible"
        title = localized(NAMES[kind])
        if trace.inputs.n_rows > 1:
            title += localized(", text {number}", number=row + 1)
        says = localized("causal" if causal else seen)
        title = localized("{title}: {name}", title=title, name=says)
        yield _cut(title, queries, keys, allowed[row, 0], kind)


def _packed(trace: Trace) -> Iterator[Matrix]:
    """The masks of all texts in one row, as training packs them."""
    layouts, names = dict[str, Layout](), dict[str, list[str]]()
    for side in trace.inputs.sides:
        texts = [trace.tokens(side, row) for row in range(trace.inputs.n_rows)]
        layouts[side] = Layout(offsets=torch.tensor([0, *np.cumsum([*map(len, texts)])]))
        names[side] = [name for text in texts for name in text]
    for kind in own_kinds(trace).values():
        stack, _, name = kind.partition(".")
        queries = keys = SIDES[stack]
        if name == "cross_attention":
            keys = "source"
            mask = cross_mask(layouts[queries], layouts[keys])
        else:
            mask = self_mask(layouts[queries], getattr(trace.model, stack).causal)
        allowed = mask.boolean(len(names[queries]), len(names[keys]), CPU)[0, 0]
        title = localized(NAMES[kind]) + localized(", texts packed end to end")
        yield _cut(title, names[queries], names[keys], allowed, f"{kind}, packed")


def _names(trace: Trace, side: str, row: int) -> list[str]:
    """Tokens of a row, with padding to the batch's length."""
    read = trace.inputs.sides.get(side) or next(iter(trace.inputs.sides.values()))
    names = list(read.names[row])
    return [*names[: read.row_length(row)], *[PADDING] * (read.length - read.row_length(row))]


def _cut(
    name: str, rows: Sequence[str], columns: Sequence[str], allowed: Tensor, group: str
) -> Matrix:
    """Make a matrix of the first tokens."""
    rows, columns = tuple(rows[:MAX_SHOWN]), tuple(columns[:MAX_SHOWN])
    allowed = allowed.expand(max(len(rows), len(allowed)), -1)  # rows alike are drawn once
    return Matrix(name, rows, columns, allowed[: len(rows), : len(columns)].clone(), group)


def _grid(matrix: Matrix, yes: str, no: str, labelled: bool = True) -> list[str]:
    """Lines of a matrix: column heads letter below letter, then a row per query."""
    left = [f"{clipped(visible(name), 12)} " if labelled else "" for name in matrix.rows]
    margin = max(map(cell_len, left))
    heads = [clipped(visible(name), 7) for name in matrix.columns]
    tall = max(map(len, heads))
    lines = [("", [head.rjust(tall)[i] for head in heads]) for i in range(tall)]
    for label, row in zip(left, matrix.allowed.tolist(), strict=True):
        lines.append((label, [yes if cell else no for cell in row]))
    return [
        " " * (margin - cell_len(label)) + label + "".join(set_cell_size(cell, 3) for cell in cells)
        for label, cells in lines
    ]


VIEW = View(
    "Masks",
    "Which tokens (columns) each token (row) may see: as 1 and 0, and as M, which is added to the "
    "scores: 0 changes nothing, −∞ makes the weight 0. Several texts also show padding and "
    "packing.",
    lambda question: masks(the_trace(question)),
)
