"""Two models on one text: what each token may see in either, and what each predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from qkv.inspect.answers.answer import Answer, Question, View, the_trace
from qkv.inspect.answers.lens import stack_of
from qkv.inspect.draw.labels import clipped, units, visible
from qkv.inspect.draw.language import localized, localized_each
from qkv.inspect.draw.panels import draw_visibility
from qkv.inspect.draw.style import COLOURS, MARKERS, caption, new_figure
from qkv.inspect.draw.table import Table
from qkv.inspect.trace.inputs import SIDES
from qkv.inspect.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Reading:
    """One model's side: its tokens, what they may see, and its best outputs at each."""

    model: str
    tokens: tuple[str, ...]
    allowed: Tensor  # (N, N) bool: which tokens (columns) each token (row) sees
    predictions: tuple[tuple[tuple[str, float], ...], ...]  # by token; () where it predicts none

    @property
    def outputs(self) -> tuple[tuple[tuple[str, float], ...], ...]:
        """The predictions at each token, none in a model that predicts no tokens."""
        return self.predictions or ((),) * len(self.tokens)


@dataclass(frozen=True)
class SideBySide(Answer):
    """Two readings of one text, and how far quantities of both have moved, if they are alike."""

    readings: tuple[Reading, Reading]
    moved: tuple[tuple[str, float, float | None], ...]  # key, largest difference, cosine

    def parts(self) -> list[Table]:
        """A table per model, and one of differences."""
        tables = [
            Table(
                localized_each("token", "sees", "predicts"),
                [
                    (
                        visible(token),
                        localized("{count} of {all}", count=int(seen.sum()), all=len(seen)),
                        units(best, ".3f"),
                    )
                    for token, seen, best in zip(
                        reading.tokens, reading.allowed, reading.outputs, strict=True
                    )
                ],
                reading.model,
            )
            for reading in self.readings
        ]
        if self.moved:
            rows = [
                (key, f"{largest:.3g}", "" if cosine is None else f"{cosine:.4f}")
                for key, largest, cosine in self.moved
            ]
            head = localized_each("quantity", "largest difference", "cosine")
            tables.append(Table(head, rows, localized("How far each quantity has moved")))
        return tables

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield each table below its title."""
        for table in self.parts():
            yield Text(table.title, style="italic")
            yield from table.text(width)
            yield ""

    def figure(self) -> Figure:
        """Draw what each token may see in either model, with the best prediction beside it."""
        most = max(len(reading.tokens) for reading in self.readings)
        size = max(9.0, 0.62 * most + 5.0), max(3.2, 0.26 * most + 1.9)
        if not self.moved:
            figure, panels = new_figure(*size, ncols=2)
        else:  # models alike: what has changed matters more than who sees whom
            figure, grid = new_figure(size[0], size[1] + 2.6, nrows=2, ncols=2)
            panels, below = grid[0], grid[1, 0].get_gridspec()[1, :]
            grid[1, 0].remove()
            grid[1, 1].remove()
            self._draw_moved(figure.add_subplot(below))
        for axes, reading in zip(panels, self.readings, strict=True):
            _panel(axes, reading)
        notes = ["Filled: a row's token may see a column's."]
        if any(reading.predictions for reading in self.readings):
            notes.append("Right: its best prediction.")
        caption(figure, localized("One text in two models"), *map(localized, notes))
        return figure

    def _draw_moved(self, axes: Axes) -> None:
        """Draw the cosine between both models' residual streams after each sublayer."""
        from matplotlib.ticker import MaxNLocator

        sublayers = dict.fromkeys(key.rpartition(".")[0].split(".", 2)[2] for key, *_ in self.moved)
        for sublayer, colour, marker in zip(sublayers, COLOURS, MARKERS, strict=False):
            points = [
                (int(key.split(".")[1]), cosine, key.split(".")[0])
                for key, _, cosine in self.moved
                if cosine is not None and f".{sublayer}." in key
            ]
            for stack in dict.fromkeys(point[2] for point in points):
                x, y = zip(*[point[:2] for point in points if point[2] == stack], strict=True)
                title, name = localized(stack), localized(sublayer.replace("_", "-"))
                name = localized("{title}: {name}", title=title, name=name)
                style = "-" if stack == "decoder" else "--"
                axes.plot(x, y, style, color=colour, marker=marker, label=name)
        axes.set_title(localized("How far each quantity has moved"), loc="left")
        axes.set(xlabel=localized("layer"), ylabel=localized("cosine"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()


def compare_readings(
    trace: Trace, other: Trace, names: tuple[str, str], top: int = 3
) -> SideBySide:
    """Put two models' readings of one text side by side."""
    readings = (_reading(trace, names[0], top), _reading(other, names[1], top))
    moved: list[tuple[str, float, float | None]] = []
    if trace.model.config == other.model.config:
        found = trace.compare(other, "*.residual")
        moved = [(x.key, x.largest, x.cosine) for x in found.differences if x.largest is not None]
    return SideBySide(readings, tuple(moved))


def _reading(trace: Trace, name: str, top: int) -> Reading:
    stack = stack_of(trace, None)
    key, tokens = f"{stack}.0.self_attention.scores", trace.tokens(SIDES[stack])
    allowed = ~trace.peek([key], head=0)[key][0, 0].isneginf().cpu()
    count = len(tokens)
    allowed = allowed.expand(max(count, len(allowed)), -1)[:count, :count].clone()
    predictions: tuple[Any, ...] = ()
    if "probabilities" in trace and trace.shape("probabilities")[1] == trace.shape(key)[2]:
        predictions = tuple(
            tuple((best.name, best.probability) for best in step.candidates)
            for step in trace.steps(top)
        )
    return Reading(name, tuple(tokens), allowed, predictions)


def _panel(axes: Axes, reading: Reading) -> None:
    draw_visibility(axes, reading.allowed, reading.tokens, reading.tokens)
    for row, best in enumerate(reading.predictions):
        if best:
            text = f"{clipped(visible(best[0][0]), 12)} {best[0][1]:.2f}"
            beside = len(reading.tokens) - 0.3
            axes.text(beside, row, text, va="center", fontsize=7.5, parse_math=False)
    axes.set_title(reading.model, loc="left", parse_math=False)


def _answer(question: Question) -> SideBySide:
    assert question.other is not None
    names = (question.name or "model", question.other_name or "other")
    return compare_readings(the_trace(question), question.other, names, min(3, question.top))


def _lack(question: Question) -> str | None:
    if question.other is None:
        return "The compare view needs a second model; name it with --with."
    return None


VIEW = View(
    "Two models side by side",
    "One text in two models: which tokens each token may see, and what is predicted there. Of "
    "models alike, before and after tuning, also how far each layer's stream has moved.",
    _answer,
    _lack,
)
