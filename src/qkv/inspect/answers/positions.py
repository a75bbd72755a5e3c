"""Positions: the table that is added to embeddings, and the dot products of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from rich.console import RenderableType
from torch import Tensor

from qkv.inspect.answers.answer import Answer, Question, View
from qkv.inspect.draw import DIVERGING, HeatMap, Numbers, array, caption, new_figure, styled
from qkv.model import Model
from qkv.model.positions import Learned, Sinusoidal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_SHOWN = 128  # rows of the table
INSTEAD = {
    "rotary": "turns queries and keys by angles",
    "relative": "adds a bias for each distance to the scores",
    "disentangled": "scores distances with vectors of their own",
    "none": "knows order from its mask alone",
}


@dataclass(frozen=True)
class PositionTable(Answer):
    """Vectors (n, D) that are added to the embeddings of the first n positions."""

    table: Tensor

    def draw(self) -> Figure:
        """Draw the table on the left, and the dot products of its rows on the right."""
        values = array(self.table)
        with styled():
            figure, (left, right) = new_figure(9.6, 4.2, ncols=2, width_ratios=(1.25, 1))
            _heat(left, values, "value", f"The table: {len(values)} positions × {values.shape[1]}")
            left.set(xlabel="dimension", ylabel="position")
            _heat(right, values @ values.T, "dot product", "Each position with each other")
            right.set(xlabel="position", ylabel="position")
            right.set_box_aspect(1)
            caption(figure, "Near positions have similar vectors")
        return figure

    def numbers(self) -> Any:
        """Return the table and the dot products of its rows."""
        products = self.table @ self.table.T
        return {"table": self.table.tolist(), "dot_products": products.tolist()}

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield cosines of as many positions as fit; one long row would hide the dot products."""
        fit = max(4, min(len(self.table), (width - 4) // 2, 32))
        names = [str(position) for position in range(fit)]
        rows = F.normalize(self.table[:fit])
        yield from HeatMap(
            rows @ rows.T, names, names, f"cosines of the first {fit} positions"
        ).text(width)


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


def _table(model: Model | None) -> Tensor | None:
    """The table of positions, (n, E), the encoder's if there are two."""
    stack: Any = getattr(model, "encoder", None) or getattr(model, "decoder", None)
    scheme = stack.positions
    if isinstance(scheme, Learned):
        return scheme.table.weight
    return scheme.table if isinstance(scheme, Sinusoidal) else None


def _answer(question: Question) -> PositionTable:
    table = _table(question.model)
    assert table is not None
    if len(table) > MAX_SHOWN:
        question.remark(f"positions: the first {MAX_SHOWN} of {len(table):,}")
    return PositionTable(table[:MAX_SHOWN].detach().float().cpu())


def _lack(question: Question) -> str | None:
    assert question.model is not None
    if _table(question.model) is not None:
        return None
    scheme = question.model.config.positions
    return (
        f"This model has no table of positions to show: it "
        f"{INSTEAD.get(scheme, 'adds nothing to embeddings')} (positions = {scheme!r}); choose "
        "another view."
    )


VIEW = View(
    "Positions",
    "The table that is added to embeddings, and how similar its rows are.",
    _answer,
    _lack,
    needs_text=False,
)
