"""Shift: what a decoder reads beside what it should say next, and what each label costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkv.data import IGNORE
from qkv.inspect.answers.answer import Answer, Question, View, the_trace
from qkv.inspect.answers.steps import MAX_DRAWN, last_drawn
from qkv.inspect.draw.labels import clipped, visible
from qkv.inspect.draw.language import localized, localized_each
from qkv.inspect.draw.style import CHANGE, KEY, QUERY, caption, new_figure
from qkv.inspect.draw.table import Table
from qkv.inspect.trace.outputs import by_position, label_name, row_labels
from qkv.inspect.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Shifted:
    """One position: the token that is read, the label, and −log P of the label."""

    position: int
    reads: str
    label: str | None  # None: nothing is expected here
    probability: float | None
    cost: float | None  # −log P in nats


@dataclass(frozen=True)
class Shift(Answer):
    """Decoder input and labels side by side."""

    positions: tuple[Shifted, ...]
    mean: float  # of −log P over the positions that have a label

    def parts(self) -> list[Table]:
        """A row per position, and their mean."""
        head = localized_each("position", "reads Y_shift", "label Y_label", "P(label)", "−log P")
        rows = [
            (
                str(x.position),
                visible(x.reads),
                "" if x.label is None else visible(x.label),
                "" if x.probability is None else f"{x.probability:.4f}",
                "" if x.cost is None else f"{x.cost:.3f}",
            )
            for x in self.positions
        ]
        rows.append(("", "", "", localized("mean"), f"{self.mean:.3f}"))
        return [Table(head, rows)]

    def figure(self) -> Figure:
        """Draw both sequences, an arrow from each token to its label, and bars of −log P."""
        shown = self.positions[-MAX_DRAWN:]
        width = min(40.0, max(5.0, 0.8 * len(shown) + 1.4))
        figure, (above, below) = new_figure(width, 4.0, nrows=2, height_ratios=(1.1, 1.6))
        above.set(xlim=(-0.7, len(shown) - 0.3), ylim=(-0.5, 1.5))
        above.set_yticks([0, 1], localized_each("label Y_label", "reads Y_shift"))
        above.set_xticks([])
        above.grid(False)
        above.spines[:].set_visible(False)
        for x, item in enumerate(shown):
            box = {"boxstyle": "round,pad=0.25", "facecolor": "none", "edgecolor": QUERY}
            style = {"ha": "center", "va": "center", "fontsize": 8, "parse_math": False}
            above.text(x, 1, clipped(visible(item.reads), 10), bbox=box, **style)
            if item.label is not None:
                box = {**box, "edgecolor": KEY}
                above.text(x, 0, clipped(visible(item.label), 10), bbox=box, **style)
                arrow = {"arrowstyle": "->", "color": KEY, "shrinkA": 9, "shrinkB": 9}
                above.annotate("", (x, 0), (x, 1), arrowprops=arrow)
        costs = [item.cost or 0.0 for item in shown]
        below.bar(range(len(shown)), costs, 0.6, color=CHANGE)
        below.axhline(self.mean, color=KEY, linewidth=1)
        about = localized("mean = {mean:.3f}", mean=self.mean)
        below.text(len(shown) - 0.35, self.mean, about, fontsize=8, va="bottom", ha="right")
        below.set(xlim=(-0.7, len(shown) - 0.3), ylabel="−log P", xlabel=localized("position"))
        below.set_xticks(range(len(shown)), [str(item.position) for item in shown])
        title = localized("At each position the label is the next token of the target")
        caption(figure, title, last_drawn(len(self.positions), MAX_DRAWN, "positions"))
        return figure


def shift(trace: Trace, row: int = 0) -> Shift:
    """Put what the decoder reads beside its labels."""
    logits = by_position(trace, trace["logits"][row].float(), row)
    logs = logits.double().log_softmax(dim=-1)
    labels = row_labels(trace, row, len(logits))
    positions, costs = [], []
    for at, (reads, label) in enumerate(zip(trace.tokens("target", row), labels, strict=True)):
        if label == IGNORE:
            positions.append(Shifted(at, reads, None, None, None))
            continue
        cost = -float(logs[at, label])
        costs.append(cost)
        name = label_name(trace, label, row, at)
        positions.append(Shifted(at, reads, name, math.exp(-cost), cost))
    return Shift(tuple(positions), sum(costs) / len(costs))


def _lack(question: Question) -> str | None:
    trace = the_trace(question)
    if trace.inputs.target is None:
        return "An encoder predicts tokens where they stand, so nothing is shifted; see its steps."
    if trace.inputs.labels is None:
        return "A text of one token has no next token to predict; give a longer one."
    return None


VIEW = View(
    "Shift",
    "What the decoder reads (shifted to the right) beside what it should say next, and what each "
    "label costs: −log P. Their mean is the loss.",
    lambda question: shift(the_trace(question)),
    _lack,
)
