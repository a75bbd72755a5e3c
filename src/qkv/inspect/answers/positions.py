"""Positions: the table that is added to embeddings, or the angles that turn queries and keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import RenderableType
from torch import Tensor

from qkv.inspect.answers.answer import Answer, Question, View
from qkv.inspect.draw.heat_map import HeatMap, clipping_note
from qkv.inspect.draw.labels import decimal
from qkv.inspect.draw.language import localized, localized_each
from qkv.inspect.draw.style import DIVERGING, QUERY, Numbers, array, caption, new_figure
from qkv.inspect.draw.table import Table
from qkv.model import Model
from qkv.model.positions import Learned, Sinusoidal
from qkv.model.positions.rotary import rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_SHOWN = 128  # rows of the table
USUAL = 0.99  # share of the cells that may set the scale of colours by themselves
INSTEAD = {
    "relative": "adds a bias for each distance to the scores",
    "disentangled": "scores distances with vectors of their own",
    "none": "knows order from its mask alone",
}


@dataclass(frozen=True)
class PositionTable(Answer):
    """Vectors (n, D) that are added to the embeddings of the first n positions."""

    table: Tensor

    def figure(self) -> Figure:
        """Draw the table on the left, and the dot products of its rows on the right."""
        values = array(self.table)
        figure, (left, right) = new_figure(9.6, 4.2, ncols=2, width_ratios=(1.25, 1))
        count, width = values.shape
        title = localized("The table: {count} positions × {width}", count=count, width=width)
        beyond = _heat(left, values, localized("value"), title)
        left.set(xlabel=localized("dimension"), ylabel=localized("position"))
        title = localized("Each position with each other")
        far = _heat(right, values @ values.T, localized("dot product"), title)
        right.set(xlabel=localized("position"), ylabel=localized("position"))
        right.set_box_aspect(1)
        told = (("←", beyond), ("→", far))
        notes = [localized("{title}: {name}", title=at, name=note) for at, note in told if note]
        caption(figure, localized("What positions add, and how alike they are"), *notes)
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
        title = localized("cosines of the first {count} positions", count=fit)
        yield from HeatMap(rows @ rows.T, names, names, title).text(width)


@dataclass(frozen=True)
class RotaryAngles(Answer):
    """Angles by which each pair of dimensions turns, and the product of two turned vectors."""

    rates: Tensor  # (pairs,) radians per position
    n_positions: int

    @property
    def angles(self) -> Tensor:
        """Angle of each pair at each position in radians, (positions, pairs)."""
        return torch.arange(self.n_positions)[:, None] * self.rates

    @property
    def products(self) -> Tensor:
        """q·k of two equal vectors, all pairs of length 1, by their distance, divided by pairs."""
        return self.angles.double().cos().mean(dim=1).float()

    def numbers(self) -> Any:
        """Return rates, angles and products."""
        return {
            "rates": self.rates.tolist(),
            "angles": self.angles.tolist(),
            "products": self.products.tolist(),
        }

    def parts(self) -> list[Table]:
        """Some pairs with their rates and periods, and products by distance."""
        count = len(self.rates)
        pairs = sorted({*range(0, count, max(1, count // 8)), count - 1})
        rows = [
            (
                str(pair),
                f"{float(self.rates[pair]):.4g}",
                f"{np.degrees(float(self.rates[pair])):.3g}°",
                f"{2 * np.pi / float(self.rates[pair]):,.0f}",
            )
            for pair in pairs
        ]
        head = localized_each("pair", "radians per position", "degrees", "positions for one turn")
        distances = [x for x in (0, 1, 2, 4, 8, 16, 32, 64, 127) if x < self.n_positions]
        products = [(str(x), decimal(float(self.products[x]), ".3f")) for x in distances]
        about = localized_each("distance m − n", "q_m·k_n / q·k")
        return [Table(head, rows), Table(about, products)]

    def figure(self) -> Figure:
        """Draw the cosines of the angles, and the product of two positions by their distance."""
        figure, (left, right) = new_figure(9.6, 4.0, ncols=2, width_ratios=(1.1, 1))
        title = localized("cos of each pair's angle")
        _heat(left, array(self.angles.cos()), localized("cos(m·θ_i)"), title)
        left.set(xlabel=localized("pair"), ylabel=localized("position"))
        right.plot(self.products.tolist(), color=QUERY)
        right.axhline(0, color="#808080", linewidth=0.6)
        right.set(xlabel=localized("distance m − n"), ylabel=localized("q_m·k_n / q·k"))
        right.set_title(localized("Two equal vectors, turned by their positions"))
        caption(figure, localized("Rotary positions: the product depends on the distance alone"))
        return figure


def _heat(axes: Axes, values: Numbers, name: str, title: str) -> str:
    """Draw a map around 0; returns a note if a few cells would have paled all others."""
    from matplotlib.ticker import MaxNLocator

    most = _limit(values)
    image = axes.imshow(values, cmap=DIVERGING, vmin=-most, vmax=most, aspect="auto")
    axes.grid(False)
    axes.set_title(title)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(8, integer=True))
    axes.figure.colorbar(image, ax=axes, label=name, shrink=0.85, pad=0.02)
    return clipping_note(values, most)


def _limit(values: Numbers) -> float:
    """The strongest colour's value: the largest one, unless it is far above nearly all others."""
    sizes = np.abs(values)
    most, usual = float(sizes.max(initial=0)), float(np.quantile(sizes, USUAL)) if sizes.size else 0
    return most if most <= 4 * usual or not usual else usual


def _table(model: Model | None) -> Tensor | None:
    """The table of positions, (n, E), the encoder's if there are two."""
    stack: Any = getattr(model, "encoder", None) or getattr(model, "decoder", None)
    scheme = stack.positions
    if isinstance(scheme, Learned):
        return scheme.table.weight
    return scheme.table if isinstance(scheme, Sinusoidal) else None


def _answer(question: Question) -> PositionTable | RotaryAngles:
    assert question.model is not None
    config = question.model.config
    if config.positions == "rotary":
        return RotaryAngles(rates(config).float().cpu(), min(MAX_SHOWN, config.max_length))
    table = _table(question.model)
    assert table is not None
    if len(table) > MAX_SHOWN:
        remark = "positions: the first {shown} of {count:,}"
        question.remark(localized(remark, shown=MAX_SHOWN, count=len(table)))
    return PositionTable(table[:MAX_SHOWN].detach().float().cpu())


def _lack(question: Question) -> str | None:
    assert question.model is not None
    scheme = question.model.config.positions
    if scheme == "rotary" or _table(question.model) is not None:
        return None
    return (
        f"This model has no table of positions to show: it "
        f"{INSTEAD.get(scheme, 'adds nothing to embeddings')} (positions = {scheme!r}); choose "
        "another view."
    )


VIEW = View(
    "Positions",
    "The table that is added to embeddings, and how similar its rows are; or, with rotary "
    "positions, the angles that turn queries and keys, and what a distance makes of a product.",
    _answer,
    _lack,
    needs_text=False,
)
