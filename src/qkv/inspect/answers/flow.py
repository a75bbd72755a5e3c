"""The flow of a pass from input to output: the main quantities with formulas and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup
from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from qkv.inspect.answers.answer import Answer, View, the_trace
from qkv.inspect.draw.labels import FACTORS, clipped, packed, visible, wrapped_formula
from qkv.inspect.draw.language import localized, localized_each, localized_formula, localized_name
from qkv.inspect.draw.page import piece, texts
from qkv.inspect.draw.style import (
    ATTENTION,
    HATCH,
    INK,
    KEY,
    LINE,
    PAPER,
    QUERY,
    SOFT,
    VALUE,
    caption,
    new_figure,
)
from qkv.inspect.draw.table import Table, plain_table
from qkv.inspect.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lane = Literal["encoder", "decoder", "output"]
Place = tuple[float, float]
Box = tuple[float, float, float]  # its lower left corner and its width

# What a stage is, by the last word of its key: these have a colour of their own everywhere.
PARTS = {
    "query": "query",
    "key": "key",
    "value": "value",
    "products": "attention",
    "scores": "attention",
    "weights": "attention",
    "mask": "mask",
    "input": "stream",
    "residual": "stream",
}
EDGES = {
    "query": QUERY,
    "key": KEY,
    "value": VALUE,
    "attention": ATTENTION,
    "mask": HATCH,
    "stream": INK,
}
INSIDE = {  # what a step inside a sublayer is computed from
    "input": ("embedding", "positions"),
    "products": ("query", "key"),
    "scores": ("products", "bias", "mask"),
    "weights": ("scores",),
    "heads": ("weights", "value"),
    "output_norm": ("output",),
}
GIVEN = ("tokens", "labels", "positions", "mask")  # by the text alone
FIRST = ("query", "key", "value", "shares", "hidden")  # of a sublayer, after its norm
WIDE, TALL, GAP, BETWEEN = 4.2, 0.5, 0.2, 1.2  # inches: a box, between boxes, between lanes
TYPE = 8.0  # points
TEXT_CELLS = 46  # of a text's tokens with their symbol in a box,
LONGEST_TEXT = 200  # and in a terminal or page
NARROW_LINE = 20  # cells of a formula in a line of a narrow box
KEYS_FIT = 120  # width of a terminal that has room for keys
ABOUT = "The main quantities in the order of the formulas, with their shapes."


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
    tokens: tuple[str, ...] = ()  # where the stage is a text

    @property
    def parts(self) -> tuple[str, str]:
        """The sublayer in its name, if there is one, and what it is there."""
        sublayer, _, part = self.name.replace("：", ": ").rpartition(": ")
        return sublayer, part

    def localized(self) -> Stage:
        """The stage with its name and formula in the current language, and its tokens."""
        name, formula = localized_name(self.name), localized_formula(self.formula)
        if self.tokens:
            formula = clipped(f"{formula} = {' '.join(map(visible, self.tokens))}", LONGEST_TEXT)
        return replace(self, name=name, formula=formula)

    @property
    def part(self) -> str:
        """Which of the coloured parts it is, if any."""
        return PARTS.get(self.key.rpartition(".")[2], "")

    @property
    def size(self) -> str:
        """The shape in letters and in numbers."""
        return f"{self.letters} = {self.shape}" if self.shape else localized("a number")

    @property
    def letters(self) -> str:
        """The shape in letters, "(B, H, T, S)"."""
        return f"({', '.join('D/H' if letter == 'K' else letter for letter in self.axes)})"


class Flow(tuple[Stage, ...], Answer):
    """The stages of a pass; shown with one layer of each lane that stands for all."""

    parallel = False  # whether the sublayers of a block all read its input

    @property
    def shown(self) -> Flow:
        """The stages with one layer per lane."""
        first = {stage.lane: stage.layer for stage in self[::-1] if stage.layer is not None}
        shown = Flow(stage for stage in self if stage.layer in (None, first.get(stage.lane)))
        shown.parallel = self.parallel
        return shown

    def n_layers(self, lane: Lane) -> int:
        """Number of layers of a lane."""
        layers = {stage.layer for stage in self if stage.lane == lane}
        return len(layers - {None})

    def figure(self) -> Figure:
        """Draw the chart: encoder left, decoder right, arrows of residuals and cross-attention."""
        shown = self.shown
        boxes = _boxes(shown)
        width = max(x + wide for x, _, wide in boxes) + 1.4
        height = -min(y for _, y, _ in boxes) + TALL + 0.9
        figure, axes = new_figure(width, height)
        axes.set(xlim=(-0.7, width - 0.7), ylim=(TALL + 0.45 - height, TALL + 0.45))
        axes.set_aspect("equal")
        axes.axis("off")
        self._frames(axes, boxes)
        for box, stage in zip(boxes, shown, strict=True):
            _draw_box(axes, box, stage.localized())
        for start, end in shown.feeds():
            _draw_feed(axes, shown, boxes, start, end)
        for start, end in shown.skips():
            _draw_skip(axes, shown, boxes, start, end)
        caption(figure, localized(ABOUT))
        return figure

    def html(self) -> Markup:
        """Return the stages, lane beside lane, each layer in a frame."""
        lanes: dict[Lane, list[Stage]] = {}
        for stage in self.shown:
            lanes.setdefault(stage.lane, []).append(stage)
        parts = [
            [
                (heading, heading != localized(lane), [stage.localized() for stage in group])
                for heading, group in groupby(stages, self._heading)
            ]
            for lane, stages in lanes.items()
        ]
        return piece("flow", parts)

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield a table, lane by lane, with keys if they fit."""
        plain = plain_table()
        keys = ["key"] if width >= KEYS_FIT else []
        for name in (*localized_each("quantity", "formula", "shape"), *keys):
            plain.add_column(name, no_wrap=True)
        room = self._formula_room(width)
        for heading, stages in groupby(self.shown, self._heading):
            plain.add_section()
            plain.add_row(Text(heading, style="bold"))
            named = [stage.localized() for stage in stages]
            for sublayer, group in groupby(named, lambda stage: stage.parts[0]):
                if sublayer:
                    plain.add_row(Text(f"  {sublayer}", style="italic"))
                for stage in group:
                    name = ("    " if sublayer else "  ") + stage.parts[1]
                    formula = wrapped_formula(stage.formula, room)
                    cells = [name, formula, stage.size, stage.key][: len(plain.columns)]
                    plain.add_row(*map(Text, cells))  # brackets are not rich's markup
        yield plain

    def _formula_room(self, width: int) -> int:
        """Cells of a line that the other columns leave to formulas."""
        shown = [stage.localized() for stage in self.shown]
        name = max(cell_len(stage.parts[1]) + 4 for stage in shown)
        shape = max(cell_len(f"{stage.letters} = {stage.shape}") for stage in shown)
        key = max(len(stage.key) for stage in shown) + 2 if width >= KEYS_FIT else 0
        return max(16, width - name - shape - key - 4)

    def _heading(self, stage: Stage) -> str:
        """The heading of a stage: its lane, and the layers that it stands for."""
        if stage.layer is None:
            return localized(stage.lane)
        lane, count = localized(stage.lane), self.n_layers(stage.lane)
        if count > 1:
            return localized("{lane} layer × {count}", lane=lane, count=count)
        return localized("{lane} layer {layer}", lane=lane, layer=stage.layer)

    def _frames(self, axes: Axes, boxes: list[Box]) -> None:
        """Draw a frame around the layer of each lane, with the number of layers."""
        inside: dict[Lane, list[Box]] = {}
        for stage, box in zip(self.shown, boxes, strict=True):
            if stage.layer is not None:
                inside.setdefault(stage.lane, []).append(box)
        for lane, (first, *_, last) in inside.items():
            x, top, bottom = last[0] - 0.45, first[1] + TALL + 0.13, last[1] - 0.11
            size, style = (WIDE + 0.9, top - bottom), {"linestyle": "--", "zorder": 0}
            _rounded(axes, (x, bottom), size, 0.1, "none", LINE, **style)
            side = x + (WIDE + 0.68 if lane == "encoder" else 0.22)  # free of residual arrows
            sign = localized("layer {layer}", layer=0)
            sign = f"× {self.n_layers(lane)}" if self.n_layers(lane) > 1 else sign
            axes.text(side, top - 0.15, sign, rotation=90, ha="center", va="top", fontsize=10)

    def feeds(self) -> list[tuple[int, int]]:
        """What each stage is computed from, residuals aside: pairs of indices."""
        index = {stage.key: number for number, stage in enumerate(self)}
        return [(start, end) for end in range(len(self)) for start in self._sources(index, end)]

    def _sources(self, index: dict[str, int], end: int) -> list[int]:
        """The stages that one stage is computed from."""
        sublayer, _, kind = self[end].key.rpartition(".")
        if kind in GIVEN:
            return []
        if kind in ("key", "value") and sublayer.endswith("cross_attention"):
            return [i for i, stage in enumerate(self) if stage.lane == "encoder"][-1:]
        if kind in FIRST and f"{sublayer}.norm" in index:
            return [index[f"{sublayer}.norm"]]
        if kind == "norm" or kind in FIRST:
            return self._given_to(sublayer)
        if kind == "bias":
            made = "Q" in self[end].formula  # of queries and keys; else of distances alone
            return [index[f"{sublayer}.{part}"] for part in ("query", "key")] if made else []
        if kind == "loss":
            return [*self._before(end), index["target.labels"]]
        if kind in INSIDE:
            return [index[key] for part in INSIDE[kind] if (key := f"{sublayer}.{part}") in index]
        return self._before(end)

    def skips(self) -> list[tuple[int, int]]:
        """Residual arrows as indices: from what a sublayer's output is added to, to the sum."""
        arrows = []
        for end, stage in enumerate(self):
            if stage.key.endswith(".residual"):
                sublayer = stage.key.removesuffix(".residual")
                start = next(i for i, other in enumerate(self) if other.key.startswith(sublayer))
                before = [] if start == end else self._before(start)
                arrows += [(source, end) for source in before]
        return arrows

    def _before(self, end: int) -> list[int]:
        """The stage before one on its way; an output's way begins where the last lane ends."""
        way = [i for i in range(end) if self[i].key != "target.labels"]
        same = [i for i in way if self[i].lane == self[end].lane]
        return (way if not same and self[end].lane == "output" else same)[-1:]

    def _given_to(self, sublayer: str) -> list[int]:
        """What a sublayer reads: the stage before it or, where all are parallel, its block."""
        whole = sublayer.rpartition(".")[0] if self.parallel else sublayer
        first = next(i for i, stage in enumerate(self) if stage.key.startswith(f"{whole}."))
        return self._before(first)


def flow(trace: Trace) -> Flow:
    """List the main quantities in the order of the formulas, the labels just before the loss."""
    main = [
        key for key, found in trace.quantities.items() if not (found.is_weight or found.is_detail)
    ]
    keys = [key for key in main if key != "target.labels"]
    if "loss" in keys:
        keys.insert(keys.index("loss"), "target.labels")
    found = Flow(_stage(trace, key) for key in keys)
    found.parallel = trace.model.config.parallel
    return found


def describe(trace: Trace) -> Markup:
    """Describe a trace in a notebook: its tokens, keys, formulas and shapes; computes nothing."""
    rows = [
        (
            key,
            localized_formula(trace.formula(key)),
            ", ".join(trace.axes(key)),
            " × ".join(map(str, trace.shape(key))),
        )
        for key in trace
    ]
    tokens = {localized(side): trace.tokens(side) for side in trace.inputs.sides}
    head = localized_each("quantity", "formula", "axes", "shape")
    return piece("fragment", texts(tokens) + Table(head, rows).html())


def _stage(trace: Trace, key: str) -> Stage:
    first, *rest = key.split(".")
    lane: Lane = "encoder" if first in ("source", "encoder") else "decoder"
    if key == "target.labels" or not rest:
        lane = "output"
    layer = int(rest[0]) if len(rest) >= 3 else None
    quantity = trace.quantities[key]
    shape, tokens = trace.shape(key), list[str]()
    if key in ("source.tokens", "target.tokens") and quantity.axes[1:] in (("S",), ("T",)):
        tokens = trace.tokens(first)
    return Stage(
        key, quantity.name, quantity.formula, quantity.axes, shape, lane, layer, tuple(tokens)
    )


def _boxes(stages: Sequence[Stage]) -> list[Box]:
    """Where each stage stands; queries, keys and values are side by side, and labels apart.

    In cross-attention keys and values stand on the encoder's side. Products, mask, scores and
    weights leave room for the way of the values, labels for the way to the loss. The output is
    below the last lane.
    """
    lanes = list(dict.fromkeys(stage.lane for stage in stages if stage.lane != "output"))
    depth, before, boxes = dict.fromkeys(lanes, TALL + GAP), dict[Lane, Stage](), []
    for stage in stages:
        lane = lanes[-1] if stage.lane == "output" else stage.lane
        if not _is_beside(stage, before.get(lane)):
            depth[lane] -= TALL + GAP
            if lane in before and before[lane].layer != stage.layer:
                depth[lane] -= 0.3
        left, wide = _across(stage, stages)
        boxes.append((lanes.index(lane) * (WIDE + BETWEEN) + left, depth[lane], wide))
        before[lane] = stage
    return boxes


def _is_beside(stage: Stage, before: Stage | None) -> bool:
    """Whether a stage stands in the row of the one before it; a mask below a bias."""
    kind = stage.key.rpartition(".")[2]
    if before is None or kind not in ("key", "value", "positions", "bias", "mask"):
        return False
    return not (kind == "mask" and before.key.endswith(".bias"))


def _across(stage: Stage, stages: Sequence[Stage]) -> tuple[float, float]:
    """Where a stage begins within its lane, and how wide it is."""
    sublayer, _, kind = stage.key.rpartition(".")
    cross, third = sublayer.endswith("cross_attention"), WIDE / 3
    columns = {"query": 0, "key": 1, "value": 2, "products": 0, "bias": 1, "mask": 1}
    if kind in columns:
        column = 2 - columns[kind] if cross else columns[kind]
        is_under_bias = kind == "mask" and any(x.key == f"{sublayer}.bias" for x in stages)
        return column * third + 0.04, third - (0.28 if is_under_bias else 0.08)
    if kind in ("scores", "weights"):
        return (third + 0.04 if cross else 0.0), WIDE - third - 0.04
    half = WIDE / 2 - 0.06
    if kind == "embedding" and any(other.key == f"{sublayer}.positions" for other in stages):
        return 0.0, half
    if kind == "positions" or stage.key == "target.labels":
        return WIDE - half, half
    return 0.0, WIDE


def _draw_box(axes: Axes, box: Box, stage: Stage) -> None:
    x, y, wide = box
    edge, line = EDGES.get(stage.part, LINE), 1.5 if stage.part in EDGES else 0.9
    _rounded(axes, (x, y), (wide, TALL), 0.07, PAPER, edge, zorder=2, linewidth=line)
    inside: dict[str, Any] = {"zorder": 3, "parse_math": False, "va": "center"}
    grey: dict[str, Any] = {"ha": "right", "color": SOFT}
    is_narrow = wide < WIDE / 2.5
    name = stage.parts[1] if is_narrow else stage.name
    size = TYPE - 2.5 if is_narrow else TYPE - 1
    letters, shape = (stage.letters, str(stage.shape)) if stage.shape else ("", stage.size)
    formula = clipped(stage.formula, TEXT_CELLS) if stage.tokens else stage.formula
    lines = [(0.34, name, letters, "bold"), (0.14, formula, shape, "normal")]
    if is_narrow:  # a formula needs a line of its own, a long one also a part of the next
        first, *rest = packed(FACTORS.findall(stage.formula), NARROW_LINE, "").split("\n")
        lines = [
            (0.4, name, letters, "bold"),
            (0.24, first, "", "normal"),
            (0.1, "".join(rest), shape, "normal"),
        ]
    for up, left, right, weight in lines:
        fits = _fits(left, right, wide, size)
        axes.text(x + 0.08, y + up, left, fontsize=fits, weight=weight, **inside)
        axes.text(x + wide - 0.08, y + up, right, fontsize=size, **grey, **inside)


def _rounded(
    axes: Axes, corner: Place, size: Place, radius: float, fill: str, edge: str, **style: Any
) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = f"round,pad=0,rounding_size={radius}"
    look: Any = {"facecolor": fill, "edgecolor": edge, "linewidth": 0.9, **style}
    axes.add_patch(FancyBboxPatch(corner, size[0], size[1], boxstyle=shape, **look))


def _fits(text: str, beside: str, wide: float, size: float) -> float:
    """The type size at which a text fits into its box next to another."""
    room = (wide - 0.2) * 72 - len(beside) * size * 0.6
    return max(3.0, min(TYPE, room / max(1, cell_len(text)) / 0.6))


def _draw_feed(
    axes: Axes, stages: Sequence[Stage], boxes: Sequence[Box], start: int, end: int
) -> None:
    """Draw the way from a stage to one that is computed from it."""
    (x, y, wide), (to, low, width) = boxes[start], boxes[end]
    if stages[start].lane == "encoder" != stages[end].lane and "cross" in stages[end].key:
        out, above, target = x + wide, low + TALL + 0.07, to + width / 2
        middle = boxes[start][0] + WIDE + BETWEEN / 2
        points = [(out, y + TALL / 2), (middle, y + TALL / 2), (middle, above), (target, above)]
        _line(axes, [*points, (target, low + TALL)], ATTENTION, 1.8)
        return
    # A narrow box is left or reached at its middle, a wide one where the other is.
    source, target = x + wide / 2, to + width / 2
    if wide < width:
        target = source
    elif stages[end].key == "loss" and stages[start].key != "target.labels":
        source = target = x + WIDE / 4  # beside the labels
    if stages[start].key.endswith(".bias"):
        source = target = x + wide - 0.1  # past the mask
    bend = low + TALL + 0.13
    points = [(source, y), (target, low + TALL)]
    if abs(source - target) > 0.01:
        points = [(source, y), (source, bend), (target, bend), (target, low + TALL)]
    _line(axes, points, SOFT)


def _draw_skip(
    axes: Axes, stages: Sequence[Stage], boxes: Sequence[Box], start: int, end: int
) -> None:
    """Draw a residual connection on the outer side: left of the encoder, right of the decoder."""
    left = stages[end].lane == "encoder"
    x = boxes[end][0] + (0 if left else WIDE)
    out = x + (-0.22 if left else 0.22)
    high, low = boxes[start][1] + 0.1, boxes[end][1] + TALL - 0.12
    _line(axes, [(x, high), (out, high), (out, low), (x, low)], INK, 1.5)


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
