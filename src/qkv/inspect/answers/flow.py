"""The flow of a pass from input to output: every quantity with its formula and shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup
from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from qkv.inspect.answers.answer import Answer, View, the_trace
from qkv.inspect.draw import Table, caption, new_figure, piece, styled
from qkv.inspect.draw.table import plain_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from qkv.inspect.trace.trace import Trace

Lane = Literal["encoder", "decoder", "output"]
Place = tuple[float, float]

FILLS = {"encoder": "#e3f0f8", "decoder": "#fbeadf", "output": "#e2f3ec"}
EDGES = {"encoder": "#0072B2", "decoder": "#D55E00", "output": "#009E73"}
WIDE, TALL, GAP, BETWEEN = 4.2, 0.5, 0.2, 1.2  # inches: a box, between boxes, between lanes
TYPE = 8.0  # points
KEYS_FIT = 120  # width of a terminal that has room for keys
ABOUT = "Every quantity in the order of the formulas, with its shape."


@dataclass(frozen=True)
class Stage:
    """One quantity of the chart."""

    key: str
    name: str
    formula: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    lane: Lane = "decoder"
    layer: int | None = None  # None outside of layers

    @property
    def letters(self) -> str:
        """The shape in letters, "(B, H, T, S)"."""
        return f"({', '.join('D/H' if letter == 'K' else letter for letter in self.axes)})"


class Flow(tuple[Stage, ...], Answer):
    """The stages of a pass; shown with one layer of each lane that stands for all."""

    @property
    def shown(self) -> list[Stage]:
        """The stages with one layer per lane."""
        first = {stage.lane: stage.layer for stage in self[::-1] if stage.layer is not None}
        return [stage for stage in self if stage.layer in (None, first.get(stage.lane))]

    def n_layers(self, lane: Lane) -> int:
        """Number of layers of a lane."""
        layers = {stage.layer for stage in self if stage.lane == lane}
        return len(layers - {None})

    def draw(self) -> Figure:
        """Draw the chart: encoder left, decoder right, arrows of residuals and cross-attention."""
        shown = self.shown
        places = _places(shown)
        width = max(x for x, _ in places) + WIDE + 1.4
        height = -min(y for _, y in places) + TALL + 0.9
        with styled():
            figure, axes = new_figure(width, height)
            axes.set(xlim=(-0.7, width - 0.7), ylim=(TALL + 0.45 - height, TALL + 0.45))
            axes.set_aspect("equal")
            axes.axis("off")
            self._frames(axes, places)
            for place, stage in zip(places, shown, strict=True):
                _box(axes, place, stage)
            _arrows(axes, shown, places)
            caption(figure, ABOUT)
        return figure

    def html(self) -> Markup:
        """Return the stages, lane beside lane, each layer in a frame."""
        lanes: dict[Lane, list[Stage]] = {}
        for stage in self.shown:
            lanes.setdefault(stage.lane, []).append(stage)
        parts = [
            [
                (heading, heading != lane, list(group))
                for heading, group in groupby(stages, self._heading)
            ]
            for lane, stages in lanes.items()
        ]
        return piece("flow", parts)

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield a table, lane by lane, with keys if they fit."""
        plain = plain_table()
        plain.add_column("step", no_wrap=True)
        plain.add_column("formula", overflow="fold")
        plain.add_column("shape", no_wrap=True)
        if width >= KEYS_FIT:
            plain.add_column("key", no_wrap=True)
        for heading, stages in groupby(self.shown, self._heading):
            plain.add_section()
            plain.add_row(Text(heading, style="bold"))
            for sublayer, group in groupby(stages, lambda stage: stage.name.rpartition(": ")[0]):
                if sublayer:
                    plain.add_row(Text(f"  {sublayer}", style="italic"))
                for stage in group:
                    name = ("    " if sublayer else "  ") + stage.name.rpartition(": ")[2]
                    shape = f"{stage.letters} = {stage.shape}" if stage.shape else "a number"
                    cells = [name, stage.formula, shape, stage.key][: len(plain.columns)]
                    plain.add_row(*map(Text, cells))  # brackets are not rich's markup
        yield plain

    def _heading(self, stage: Stage) -> str:
        """The heading of a stage: its lane, and the layers that it stands for."""
        if stage.layer is None:
            return stage.lane
        count = self.n_layers(stage.lane)
        return f"{stage.lane} layer {f'× {count}' if count > 1 else stage.layer}"

    def _frames(self, axes: Axes, places: list[Place]) -> None:
        """Draw a frame around the layer of each lane, with the number of layers."""
        inside: dict[Lane, list[Place]] = {}
        for stage, place in zip(self.shown, places, strict=True):
            if stage.layer is not None:
                inside.setdefault(stage.lane, []).append(place)
        for lane, (first, *_, last) in inside.items():
            x, top, bottom = first[0] - 0.45, first[1] + TALL + 0.11, last[1] - 0.11
            size, style = (WIDE + 0.9, top - bottom), {"linestyle": "--", "zorder": 0}
            _rounded(axes, (x, bottom), size, 0.1, "#f7f7f7", "#999999", **style)
            side = x + (WIDE + 0.68 if lane == "encoder" else 0.22)  # free of residual arrows
            sign = f"× {self.n_layers(lane)}" if self.n_layers(lane) > 1 else "layer 0"
            axes.text(side, top - 0.15, sign, rotation=90, ha="center", va="top", fontsize=10)


def flow(trace: Trace) -> Flow:
    """List every quantity in the order of the formulas, the labels just before the loss."""
    keys = [key for key in trace if key != "target.labels"]
    if "loss" in keys:
        keys.insert(keys.index("loss"), "target.labels")
    return Flow(_stage(trace, key) for key in keys)


def describe(trace: Trace) -> Markup:
    """Describe a trace in a notebook: its tokens, keys, formulas and shapes; computes nothing."""
    rows = [
        (
            key,
            trace.formula(key),
            ", ".join(trace.axes(key)),
            " × ".join(map(str, trace.shape(key))),
        )
        for key in trace
    ]
    tokens = piece("texts", {side: trace.tokens(side) for side in trace.inputs.sides})
    return piece("fragment", tokens + Table(("quantity", "formula", "axes", "shape"), rows).html())


def _stage(trace: Trace, key: str) -> Stage:
    first, *rest = key.split(".")
    lane: Lane = "encoder" if first in ("source", "encoder") else "decoder"
    if key == "target.labels" or not rest:
        lane = "output"
    layer = int(rest[0]) if len(rest) == 3 else None
    quantity = trace.quantities[key]
    shape = trace.shape(key)
    return Stage(key, quantity.name, quantity.formula, quantity.axes, shape, lane, layer)


def skips(stages: Sequence[Stage]) -> list[tuple[int, int]]:
    """Residual arrows as indices: from a sublayer's input to where it is added."""
    arrows = []
    for end, stage in enumerate(stages):
        if stage.key.endswith(".residual"):
            sublayer = stage.key.removesuffix("residual")
            start = next(i for i, other in enumerate(stages) if other.key.startswith(sublayer))
            before = [i for i in range(start) if stages[i].lane == stage.lane]
            if before and start < end:
                arrows.append((before[-1], end))
    return arrows


def crossings(stages: Sequence[Stage]) -> list[tuple[int, int]]:
    """Arrows as indices: from the encoder's output to the keys of each cross-attention."""
    encoder = [i for i, stage in enumerate(stages) if stage.lane == "encoder"]
    keys = [i for i, stage in enumerate(stages) if stage.key.endswith(".cross_attention.key")]
    return [(encoder[-1], i) for i in keys] if encoder else []


def _places(stages: Sequence[Stage]) -> list[Place]:
    """The lower left corner of each box; the output is below the lane that leads to it."""
    lanes = list(dict.fromkeys(stage.lane for stage in stages if stage.lane != "output"))
    depth, before, places = dict.fromkeys(lanes, 0.0), dict[Lane, Stage](), []
    for stage in stages:
        lane = lanes[-1] if stage.lane == "output" else stage.lane
        if lane in before and before[lane].layer != stage.layer:
            depth[lane] -= 0.3
        places.append((lanes.index(lane) * (WIDE + BETWEEN), depth[lane]))
        depth[lane] -= TALL + GAP
        before[lane] = stage
    return places


def _box(axes: Axes, place: Place, stage: Stage) -> None:
    x, y = place
    _rounded(axes, place, (WIDE, TALL), 0.07, FILLS[stage.lane], EDGES[stage.lane], zorder=2)
    inside: dict[str, Any] = {"zorder": 3, "parse_math": False, "va": "center"}
    grey: dict[str, Any] = {"ha": "right", "color": "#444444", "fontsize": TYPE - 1}
    lines = (
        (0.34, stage.name, stage.letters, "bold"),
        (0.14, stage.formula, str(stage.shape), "normal"),
    )
    for up, left, right, weight in lines:
        axes.text(x + 0.1, y + up, left, fontsize=_fits(left, right), weight=weight, **inside)
        axes.text(x + WIDE - 0.1, y + up, right, **grey, **inside)


def _rounded(
    axes: Axes, corner: Place, size: Place, radius: float, fill: str, edge: str, **style: Any
) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = f"round,pad=0,rounding_size={radius}"
    colours: Any = {"facecolor": fill, "edgecolor": edge, "linewidth": 0.9}
    axes.add_patch(FancyBboxPatch(corner, size[0], size[1], boxstyle=shape, **colours, **style))


def _fits(text: str, beside: str) -> float:
    """The type size at which a text fits into its box next to another."""
    room = (WIDE - 0.35) * 72 - len(beside) * (TYPE - 1) * 0.6
    return max(4.0, min(TYPE, room / max(1, cell_len(text)) / 0.6))


def _arrows(axes: Axes, stages: list[Stage], places: list[Place]) -> None:
    before: dict[float, float] = {}
    for x, y in places:  # from each box down to the next
        if x in before:
            _line(axes, [(x + WIDE / 2, before[x]), (x + WIDE / 2, y + TALL)], "#555555")
        before[x] = y
    for start, end in skips(stages):
        # On the outer side: left of the encoder, right of the decoder.
        left = stages[end].lane == "encoder"
        x = places[end][0] + (0 if left else WIDE)
        out = x + (-0.22 if left else 0.22)
        high, low = places[start][1] + 0.1, places[end][1] + TALL - 0.12
        _line(axes, [(x, high), (out, high), (out, low), (x, low)], "#009E73")
    for start, end in crossings(stages):
        x, y = places[start][0] + WIDE, places[start][1] + TALL / 2
        to, low = places[end][0], places[end][1] + TALL / 2
        middle = (x + to) / 2
        _line(axes, [(x, y), (middle, y), (middle, low), (to, low)], "#CC79A7", 1.8)
        axes.text(middle - 0.06, y + 0.12, "K, V", ha="right", fontsize=TYPE, color="#A04A7C")


def _line(axes: Axes, points: list[Place], colour: str, width: float = 1.1) -> None:
    """Draw a line with corners that ends in an arrowhead."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    axes.add_patch(
        FancyArrowPatch(
            path=Path(points),
            arrowstyle="-|>",
            mutation_scale=8,
            color=colour,
            linewidth=width,
            fill=False,
            joinstyle="round",
            zorder=1.5,
        )
    )


VIEW = View("From input to output", ABOUT, lambda question: flow(the_trace(question)))
