"""Step by step: the best candidates of each output, and how sure the model was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from qkv.data import IGNORE
from qkv.errors import UserError
from qkv.inspect.answers.answer import Answer, View, lacks_probabilities, the_trace
from qkv.inspect.draw.labels import clipped, visible
from qkv.inspect.draw.language import localized
from qkv.inspect.draw.style import COLOURS, ON_BAR, PAPER, caption, new_figure
from qkv.inspect.draw.table import Table
from qkv.inspect.trace.outputs import (
    WHOLE_TEXT,
    by_position,
    entropy,
    label_name,
    output_names,
    position_names,
    row_labels,
)
from qkv.inspect.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IN_TERMINAL = 32  # outputs; of more, the last ones are shown
MAX_DRAWN = 60  # outputs in a figure; of more, the last ones are drawn
HEAD = ("step", "after", "candidates", "entropy", "label")


@dataclass(frozen=True)
class Candidate:
    """A possible output."""

    id: int
    name: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """One output: its best candidates, and the label."""

    position: int
    after: str  # the token at which it is predicted
    candidates: tuple[Candidate, ...]  # best first
    entropy: float  # in nats: 0 is certain, ln V is uniform
    label: Candidate | None  # the output that came, or should have come
    rank: int | None  # of the label: 1 is the best candidate

    def cells(self, clip: bool = False) -> tuple[str, str, str, str, str]:
        """A row of a table, for a terminal with long names cut."""

        def shown(name: str, most: int = 14) -> str:
            return clipped(visible(name), most) if clip else visible(name)

        label = ""
        if self.label is not None:
            name = visible(self.label.name)
            label = localized("{name} (rank {rank})", name=name, rank=self.rank)
        return (
            str(self.position),
            shown(position_label(self.after)),
            "  ".join(f"{shown(x.name)} {x.probability:.3f}" for x in self.candidates),
            f"{self.entropy:.3f}",
            clipped(label, 22) if clip else label,
        )


def position_label(name: str) -> str:
    """The name of a position to show: a token, or the whole text in the current language."""
    return localized(name) if name == WHOLE_TEXT else name


class Steps(tuple[Prediction, ...], Answer):
    """The predictions of one row, in order."""

    place = "after"  # a token is predicted after the one that was read; of encoders, at it

    def figure(self) -> Figure:
        """Draw bars of the candidates' probabilities side by side, one row per step."""
        drawn = self[-MAX_DRAWN:]
        figure, axes = new_figure(8.4, max(2.0, 0.62 * len(drawn) + 1.1))
        for line, step in enumerate(drawn):
            _bars(axes, -line, step)
            axes.text(1.01, -line, f"{step.entropy:.2f}", va="center", fontsize=8)
        axes.text(1.01, 0.6, localized("entropy (nats)"), va="center", fontsize=8)
        names = [
            localized(
                f"{{position}}: {self.place} {{token}}",
                position=x.position,
                token=visible(position_label(x.after)),
            )
            for x in drawn
        ]
        axes.set_yticks([-line for line in range(len(drawn))], names, parse_math=False)
        axes.set(xlim=(0, 1), ylim=(0.4 - len(drawn), 0.8))
        most = max(len(step.candidates) for step in drawn)
        about = "probability of the {count} best candidates, side by side"
        axes.set(xlabel=localized(about, count=most))
        axes.grid(False)
        title = localized("Each step: the wider the first bar, the surer the model")
        caption(figure, title, last_drawn(len(self), MAX_DRAWN, "steps"))
        return figure

    def parts(self) -> list[Table]:
        """The table of all steps."""
        return [self._table(step.cells() for step in self)]

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield the table, with as many candidates in a line as fit."""
        shown = self[-IN_TERMINAL:]
        if len(self) > len(shown):
            note = "The last {shown} of {count:,} steps."
            yield Text(localized(note, shown=len(shown), count=len(self)), style="italic")
        yield from self._table(step.cells(clip=True) for step in shown).text(width)

    def _table(self, rows: Iterable[Sequence[str]]) -> Table:
        """A table of all columns, or of all but the last if no step has a label."""
        head = [localized(self.place if x == "after" else x) for x in HEAD]
        count = len(head) if any(step.label for step in self) else len(head) - 1
        return Table(head[:count], [row[:count] for row in rows])


def steps(trace: Trace, k: int = 5, row: int = 0) -> Steps:
    """Predict each output of one row; a classifier has one, a tagger one per token."""
    if "probabilities" not in trace:
        raise UserError("This model gives no probabilities; trace one that has an output head.")
    if k < 1:
        raise UserError(f"k is {k}, but must be at least 1.")
    probable = by_position(trace, trace["probabilities"][row].float(), row)
    names, labels = position_names(trace, row), row_labels(trace, row, len(probable))
    outputs = zip(names, probable, labels, strict=True)
    made = Steps(_prediction(trace, n, *output, k, row) for n, output in enumerate(outputs))
    made.place = "at" if trace.inputs.target is None else "after"
    return made


def last_drawn(count: int, most: int, what: str) -> str:
    """A note about the outputs that a figure leaves out."""
    if count <= most:
        return ""
    note = "The last {most} of {count:,} {what} are drawn."
    return localized(note, most=most, count=count, what=localized(what))


def _prediction(
    trace: Trace, position: int, after: str, probable: Tensor, label: int, k: int, row: int
) -> Prediction:
    values, ids = probable.topk(min(k, len(probable)))
    names = output_names(trace, ids.tolist(), row, position)
    candidates = tuple(map(Candidate, ids.tolist(), names, values.tolist()))
    unsure = float(entropy(probable, trace.inputs))
    if label == IGNORE:
        return Prediction(position, after, candidates, unsure, None, None)
    chosen = Candidate(label, label_name(trace, label, row, position), float(probable[label]))
    rank = 1 + int((probable > probable[label]).sum())
    return Prediction(position, after, candidates, unsure, chosen, rank)


def _bars(axes: Axes, y: int, step: Prediction) -> None:
    """Draw a bar per candidate, and their names and probabilities in a line below."""
    left = written = 0.0
    for rank, candidate in enumerate(step.candidates):
        share, name = candidate.probability, visible(candidate.name)
        colour = COLOURS[rank % 6]
        axes.barh(y, share, 0.46, left=left, color=colour, edgecolor=PAPER)
        written = _legend(axes, written, y - 0.4, f"{clipped(name, 14)} {share:.3f}", colour)
        if share > 0.012 * (cell_len(name) + 3):  # there is room for the name
            axes.text(
                left + 0.005,
                y,
                name,
                va="center",
                fontsize=8,
                color=ON_BAR,
                weight="bold",
                parse_math=False,
            )
        left += share


def _legend(axes: Axes, x: float, y: float, text: str, colour: str) -> float:
    """Write a candidate with a square of its colour, if there is room; returns where it ends."""
    end = x + 0.022 + 0.0105 * (cell_len(text) + 2)
    if end <= 1.02:
        axes.plot(x + 0.006, y, "s", color=colour, markersize=6, clip_on=False)
        axes.text(x + 0.018, y, text, va="center", fontsize=7.5, parse_math=False)
    return end


VIEW = View(
    "Step by step",
    "The likeliest outputs at each step; entropy 0 is certain, ln V is a uniform guess.",
    lambda question: the_trace(question).steps(question.top),
    lacks_probabilities,
)
