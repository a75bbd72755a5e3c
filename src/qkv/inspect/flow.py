"""The whole model as a road of steps: a table, a chart and a page, each step with its shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from qkv.inspect.fonts import drawable
from qkv.inspect.pages import fragment
from qkv.inspect.style import caption, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lane = Literal["encoder", "decoder", "output"]

FILLS = {"encoder": "#e3f0f8", "decoder": "#fbeadf", "output": "#e2f3ec"}
EDGES = {"encoder": "#0072B2", "decoder": "#D55E00", "output": "#009E73"}
WIDE, TALL, GAP, BETWEEN = 4.2, 0.5, 0.2, 1.2  # inches: a box, between boxes, between lanes
TYPE = 8.0  # points


@dataclass(frozen=True)
class Step:
    """One quantity on its way: what it is, how it is computed, and how large it is."""

    name: str
    formula: str
    shape_letters: str  # "(B, H, T, S)"
    shape: tuple[int, ...]
    key: str  # in a trace; one that ends in .residual adds what its sublayer was given
    lane: Lane = "decoder"
    level: int | None = None  # the layer, or None outside of layers


def folded(steps: Sequence[Step]) -> list[Step]:
    """The steps with one layer for all of a lane's."""
    first = {step.lane: step.level for step in reversed(steps) if step.level is not None}
    return [step for step in steps if step.level in (None, first.get(step.lane))]


def n_layers(steps: Sequence[Step], lane: Lane) -> int:
    """How many layers a lane has."""
    return len({step.level for step in steps if step.lane == lane and step.level is not None})


def skips(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Residual arrows, as places in the list: from a sublayer's input to where it is added."""
    arrows = []
    for end, step in enumerate(steps):
        if step.key.endswith(".residual"):
            sublayer = step.key.removesuffix("residual")
            start = next(i for i, each in enumerate(steps) if each.key.startswith(sublayer))
            before = [i for i in range(start) if steps[i].lane == step.lane]
            if before and start < end:
                arrows.append((before[-1], end))
    return arrows


def crossings(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Arrows from the encoder's output to the keys of each cross-attention."""
    encoder = [i for i, step in enumerate(steps) if step.lane == "encoder"]
    firsts: dict[str, int] = {}
    for place, step in enumerate(steps):
        if ".cross_attention." in step.key and step.lane == "decoder":
            block = step.key.split(".cross_attention.")[0]
            if block not in firsts or step.key.endswith(".cross_attention.key"):
                firsts[block] = place
    return [(encoder[-1], place) for place in firsts.values()] if encoder else []


def sizes(step: Step) -> str:
    """A shape in numbers, as it is written beside its letters."""
    return f"({', '.join(map(str, step.shape))}{',' * (len(step.shape) == 1)})"


def flow_table(steps: Sequence[Step], fold: bool = True, width: int = 120) -> Table:
    """The steps for a terminal of so many cells, lane by lane; keys are there where they fit."""
    shown = folded(steps) if fold else list(steps)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("step", no_wrap=True)
    table.add_column("formula", overflow="fold")
    table.add_column("shape", no_wrap=True)
    with_keys = width >= 120
    if with_keys:
        table.add_column("key", no_wrap=True)
    before = sublayer_before = ""
    for step in shown:
        part = _part(step, steps, fold)
        sublayer, _, name = step.name.rpartition(": ")
        if part != before:
            table.add_section()
            table.add_row(Text(part, style="bold"))
        if sublayer and (part, sublayer) != (before, sublayer_before):
            table.add_row(Text(f"  {sublayer}", style="italic"))
        before, sublayer_before = part, sublayer
        indent = "    " if sublayer else "  "
        shape = f"{step.shape_letters} = {sizes(step)}" if step.shape else "a number"
        cells = [f"{indent}{name}", step.formula, shape]
        # brackets in formulas are not rich's markup
        table.add_row(*map(Text, cells + [step.key] * with_keys))
    return table


def _part(step: Step, steps: Sequence[Step], fold: bool) -> str:
    """The heading over a step: its lane, and which layers it speaks of."""
    if step.level is None:
        return step.lane
    count = n_layers(steps, step.lane)
    return (
        f"{step.lane} layer × {count}" if fold and count > 1 else f"{step.lane} layer {step.level}"
    )


def draw_flow(
    steps: Sequence[Step], title: str = "", fold: bool = True, *, viewer_fonts: bool = False
) -> Figure:
    """The chart: encoder left, decoder right, residual and cross-attention arrows between."""
    from matplotlib.figure import Figure

    shown = folded(steps) if fold else list(steps)
    places = _places(shown)
    words = [text for step in shown for text in (step.name, step.formula)]
    drawn, note = drawable([*words, title], viewer_fonts)
    width = max(x for x, _ in places) + WIDE + 1.4
    height = -min(y for _, y in places) + TALL + 0.9
    with styled():
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
        axes.set(xlim=(-0.7, width - 0.7), ylim=(TALL + 0.45 - height, TALL + 0.45))
        axes.set_aspect("equal")
        axes.axis("off")
        _frames(axes, shown, places, steps, fold)
        for place, step in enumerate(shown):
            _box(axes, places[place], step, *drawn[2 * place : 2 * place + 2])
        _arrows(axes, shown, places)
        caption(figure, drawn[-1], note)
    return figure


def _places(steps: Sequence[Step]) -> list[tuple[float, float]]:
    """The lower left corner of each box; the output stands below the lane that leads to it."""
    lanes = list(dict.fromkeys(step.lane for step in steps if step.lane != "output"))
    column: dict[str, float] = {lane: place * (WIDE + BETWEEN) for place, lane in enumerate(lanes)}
    last = lanes[-1] if lanes else "output"
    column["output"] = column.get(last, 0.0)
    depth: dict[str, float] = {}
    before: dict[str, Step] = {}
    places = []
    for step in steps:
        lane = last if step.lane == "output" else step.lane
        parted = lane in before and before[lane].level != step.level
        y = depth.get(lane, 0.0) - (0.3 if parted else 0.0)
        places.append((column[step.lane], y))
        depth[lane], before[lane] = y - TALL - GAP, step
    return places


def _box(axes: Axes, place: tuple[float, float], step: Step, name: str, formula: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y = place
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            WIDE,
            TALL,
            boxstyle="round,pad=0,rounding_size=0.07",
            facecolor=FILLS[step.lane],
            edgecolor=EDGES[step.lane],
            linewidth=0.9,
            zorder=2,
        )
    )
    inside: dict[str, Any] = {"zorder": 3, "parse_math": False, "va": "center"}
    high, low, left, right = y + 0.34, y + 0.14, x + 0.1, x + WIDE - 0.1
    axes.text(left, high, name, fontsize=_fits(name, step.shape_letters), weight="bold", **inside)
    axes.text(left, low, formula, fontsize=_fits(formula, sizes(step)), **inside)
    grey: dict[str, Any] = {"ha": "right", "color": "#444444", "fontsize": TYPE - 1}
    axes.text(right, high, step.shape_letters, **grey, **inside)
    axes.text(right, low, sizes(step), **grey, **inside)


def _fits(text: str, beside: str) -> float:
    """The size of type with which a text fits into its box next to another."""
    room = (WIDE - 0.35) * 72 - len(beside) * (TYPE - 1) * 0.6
    return max(4.0, min(TYPE, room / max(1, cell_len(text)) / 0.6))


def _frames(
    axes: Axes,
    shown: list[Step],
    places: list[tuple[float, float]],
    steps: Sequence[Step],
    fold: bool,
) -> None:
    """A frame around each layer, which says how many there are of it."""
    from matplotlib.patches import FancyBboxPatch

    blocks: dict[tuple[Lane, int], list[tuple[float, float]]] = {}
    for step, place in zip(shown, places, strict=True):
        if step.level is not None:
            blocks.setdefault((step.lane, step.level), []).append(place)
    for (lane, level), inside in blocks.items():
        x, top, bottom = inside[0][0] - 0.45, inside[0][1] + TALL + 0.11, inside[-1][1] - 0.11
        axes.add_patch(
            FancyBboxPatch(
                (x, bottom),
                WIDE + 0.9,
                top - bottom,
                boxstyle="round,pad=0,rounding_size=0.1",
                facecolor="#f7f7f7",
                edgecolor="#999999",
                linestyle="--",
                linewidth=0.9,
                zorder=0,
            )
        )
        count = n_layers(steps, lane)
        sign = f"× {count}" if fold and count > 1 else f"layer {level}"
        side = x + WIDE + 0.68 if lane == "encoder" else x + 0.22  # where no residual arrow runs
        axes.text(side, top - 0.15, sign, rotation=90, ha="center", va="top", fontsize=10)


def _arrows(axes: Axes, steps: list[Step], places: list[tuple[float, float]]) -> None:
    before: dict[float, tuple[float, float]] = {}
    for x, y in places:  # from each box down to the next
        if x in before:
            _line(axes, [(x + WIDE / 2, before[x][1]), (x + WIDE / 2, y + TALL)], "#555555")
        before[x] = (x, y)
    for start, end in skips(steps):
        # on the outer side: left of the encoder, right of the decoder
        left = steps[end].lane == "encoder"
        x = places[end][0] + (0 if left else WIDE)
        out = x + (-0.22 if left else 0.22)
        high, low = places[start][1] + 0.1, places[end][1] + TALL - 0.12
        _line(axes, [(x, high), (out, high), (out, low), (x, low)], "#009E73")
    for start, end in crossings(steps):
        x, y = places[start][0] + WIDE, places[start][1] + TALL / 2
        to, low = places[end][0], places[end][1] + TALL / 2
        middle = (x + to) / 2
        _line(axes, [(x, y), (middle, y), (middle, low), (to, low)], "#CC79A7", 1.8)
        axes.text(middle - 0.06, y + 0.12, "K, V", ha="right", fontsize=TYPE, color="#A04A7C")


def _line(axes: Axes, points: list[tuple[float, float]], colour: str, width: float = 1.1) -> None:
    """A line with corners that ends in an arrow's head."""
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


PAGE_STYLE = """
.qkv-glass .flow{display:flex;flex-wrap:wrap;gap:2em;align-items:flex-start}
.qkv-glass .lane{flex:1 1 22em;max-width:34em}
.qkv-glass .layer{border:1px dashed var(--soft);border-radius:.6em;padding:.4em .6em;margin:.6em 0}
.qkv-glass .step{border:1px solid var(--line);border-left:4px solid var(--warm);border-radius:.4em;
padding:.25em .6em;margin:.35em 0}
.qkv-glass .step b{margin-right:.6em}
.qkv-glass .step code{font-size:12px;background:none;color:inherit}
.qkv-glass .step .soft{float:right}
"""


def flow_page(steps: Sequence[Step], title: str = "", fold: bool = True) -> str:
    """The steps as HTML, a lane beside the other; what each residual adds is said in words."""
    shown = folded(steps) if fold else list(steps)
    lanes = []
    for lane in dict.fromkeys(step.lane for step in shown):
        body, before = "", None
        for step in (each for each in shown if each.lane == lane):
            part = _part(step, steps, fold)
            if part != before:
                body += _close(before, lane) + _open(part, lane)
            body, before = body + _step_page(step), part
        lanes.append(f'<div class="lane">{body}{_close(before, lane)}</div>')
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    return fragment(f'<style>{PAGE_STYLE}</style>{heading}<div class="flow">{"".join(lanes)}</div>')


def _open(part: str, lane: str) -> str:
    heading = f'<div class="soft">{escape(part)}</div>'
    return heading if part == lane else f'<div class="layer">{heading}'


def _close(part: str | None, lane: str) -> str:
    return "" if part in (None, lane) else "</div>"


def _step_page(step: Step) -> str:
    shape = f"{escape(step.shape_letters)} = {sizes(step)}"
    return (
        f'<div class="step" title="{escape(step.key)}"><span class="soft">{shape}</span>'
        f"<b>{escape(step.name)}</b><br><code>{escape(step.formula)}</code></div>"
    )
