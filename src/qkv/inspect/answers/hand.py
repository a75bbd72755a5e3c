"""By hand: one token's way through one head and one layer, each formula with its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text
from torch import Tensor

from qkv.inspect.answers.answer import (
    Answer,
    Question,
    View,
    lacks_known_norms,
    the_trace,
    token_position,
)
from qkv.inspect.answers.attention import NAMES, check_choice, count_layers, own_kinds
from qkv.inspect.draw.labels import clipped, decimal, visible
from qkv.inspect.draw.language import localized, localized_each, localized_formula
from qkv.inspect.draw.page import piece
from qkv.inspect.draw.style import ATTENTION, INK, QUERY, SOFT, VALUE, caption, new_figure
from qkv.inspect.draw.table import Table
from qkv.inspect.trace.inputs import SIDES
from qkv.inspect.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TERMS = 3  # terms of a sum that are written out
FULL, LONGEST = 118, 150  # cells of a line of a figure: at the full size of type, and at most
KEY_HEAD = ("key j", "q·k_j", "÷ √d_k", "M", "score", "softmax")
MAX_KEYS = 16  # keys in the table of a figure; of more, those with most weight


@dataclass(frozen=True)
class Line:
    """One formula, and the same formula with numbers."""

    name: str
    formula: str
    numbers: str
    value: Tensor | None = None  # the result, where it is a vector or a number
    colour: str = INK


@dataclass(frozen=True)
class KeyRow:
    """What becomes of one key: its product with the query, scaled, masked, and its weight."""

    position: int
    token: str
    product: float
    scaled: float
    mask: float
    weight: float

    def cells(self) -> tuple[str, ...]:
        """A row of a table."""
        numbers = (self.product, self.scaled, self.mask, self.scaled + self.mask)
        return (visible(self.token), *map(_number, numbers), f"{self.weight:.3f}")


@dataclass(frozen=True)
class Hand(Answer):
    """The formulas of one token in one head and layer, in order."""

    token: str
    position: int
    attention: str
    layer: int
    head: int
    lines: tuple[Line, ...]
    keys: tuple[KeyRow, ...]
    before_keys: int  # lines before the table of keys

    @property
    def title(self) -> str:
        """Heading: the token, layer and head whose numbers are shown."""
        title = "{token} (token {position}) in layer {layer}, head {head} of {attention}"
        return localized(
            title,
            token=visible(self.token),
            position=self.position,
            layer=self.layer,
            head=self.head,
            attention=localized(NAMES[self.attention]),
        )

    @property
    def key_table(self) -> Table:
        """A row per key."""
        return Table(localized_each(*KEY_HEAD), [row.cells() for row in self.keys])

    def html(self) -> Markup:
        """Return the formulas with their numbers below, and the table of keys between them."""
        rows = [
            (localized(line.name), localized_formula(line.formula), line.numbers)
            for line in self.lines
        ]
        before = piece("formulas", self.title, rows[: self.before_keys])
        return before + self.key_table.html() + piece("formulas", "", rows[self.before_keys :])

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield each formula, and its numbers below."""
        yield Text(self.title, style="italic")
        for number, line in enumerate(self.lines):
            if number == self.before_keys:
                yield ""
                yield from self.key_table.text(width)
            yield Text(f"\n{localized(line.name)}", style="bold")
            numbers = Text(line.numbers, style=line.colour if line.colour != INK else "")
            for part in (Text(localized_formula(line.formula)), numbers):
                yield Padding(part, (0, 0, 0, 2))  # lines that go on are indented too

    def figure(self) -> Figure:
        """Draw formulas with their numbers below, and the keys as a table with bars."""
        keys = sorted(
            sorted(self.keys, key=lambda row: -row.weight)[:MAX_KEYS], key=attrgetter("position")
        )
        height = 0.52 * len(self.lines) + 0.2 * (len(keys) + 2) + 0.9
        figure, axes = new_figure(10.5, height)
        axes.set(xlim=(0, 1), ylim=(-height + 0.7, 0.1))
        axes.axis("off")
        y = 0.0
        for number, line in enumerate(self.lines):
            if number == self.before_keys:
                y = _draw_keys(axes, keys, y)
            plain: dict[str, Any] = {"va": "top", "parse_math": False}
            axes.text(0, y, localized(line.name), weight="bold", fontsize=9, **plain)
            axes.text(0.24, y, localized_formula(line.formula), fontsize=9, color=SOFT, **plain)
            numbers = clipped(line.numbers, LONGEST)
            size = min(8.0, 8.0 * FULL / cell_len(numbers))
            axes.text(0.24, y - 0.2, numbers, fontsize=size, color=line.colour, **plain)
            y -= 0.52
        left_out = len(self.keys) - len(keys)
        note = "{count} keys with less weight are not shown."
        caption(figure, self.title, localized(note, count=left_out) if left_out else "")
        return figure


def hand(trace: Trace, kind: str, layer: int, head: int, position: int, row: int = 0) -> Hand:
    """Write out what one head and one layer do with the token at a position."""
    stack, _, attention = kind.partition(".")
    block, at = f"{stack}.{layer}", f"{stack}.{layer}.{attention}"
    work = _Work(trace, block, row, position)
    stream = work.at(f"{at}.skip")
    lines = [Line("what comes in", trace.formula(f"{at}.skip"), _vector(stream), stream)]
    lines += work.norm_before(at)
    more, keys = _attend(work, at, attention, head)
    first = len(lines) + 2
    lines += more + work.add(at)
    last = trace.names(f"{block}.*_attention.residual")[-1]
    if last != f"{at}.residual":
        name, stream = last.split(".")[2].replace("_", "-"), work.at(last)
        lines.append(Line(f"after {name}", work.symbol(last), _vector(stream), stream))
    lines += _feed_forward(work, f"{block}.feed_forward")
    token = trace.tokens(SIDES[stack], row)[position]
    return Hand(token, position, kind, layer, head, tuple(lines), tuple(keys), first)


class _Work:
    """Vectors of one token in one layer."""

    def __init__(self, trace: Trace, block: str, row: int, position: int) -> None:
        self.trace, self.row, self.position = trace, row, position
        blocks = getattr(trace.model, block.partition(".")[0]).blocks
        self.block: Any = blocks[int(block.partition(".")[2]) % len(blocks)]
        self.values = trace.peek(trace.names(f"{block}.*"))  # in one pass

    def at(self, key: str) -> Tensor:
        """A quantity's vector of the token."""
        return self.values[key][self.row, self.position].detach().float()

    def read(self, at: str) -> Tensor:
        """What a sublayer reads: its norm, where norms come first, or the stream."""
        return self.at(f"{at}.norm" if f"{at}.norm" in self.values else f"{at}.skip")

    def symbol(self, key: str) -> str:
        """What the formulas call a quantity."""
        return self.trace.formula(key).partition(" = ")[0]

    def norm_before(self, at: str) -> list[Line]:
        """The norm of what a sublayer reads, where norms come first."""
        normed = f"{at}.norm"
        return self.norm(normed, normed, f"{at}.skip") if normed in self.values else []

    def add(self, at: str) -> list[Line]:
        """The residual connection around a sublayer, and the norms after it."""
        lines, added = [], f"{at}.output"
        if f"{at}.output_norm" in self.values:
            added = f"{at}.output_norm"
            lines = self.norm(added, added, f"{at}.output")
        is_post = f"{at}.sum" in self.values
        both = f"{at}.sum" if is_post else f"{at}.residual"
        total = self.at(both)
        numbers = f"[{_terms(self.at(f'{at}.skip'), self.at(added))}, …] = {_vector(total)}"
        lines.append(Line("residual connection", self.trace.formula(both), numbers, total))
        return lines + (self.norm(f"{at}.norm", f"{at}.residual", both) if is_post else [])

    def norm(self, at: str, result: str, reads: str) -> list[Line]:
        """The formulas of a norm: mean, deviation, normalised, scaled."""
        normalised, normed = self.at(f"{at}.normalised"), self.at(result)
        deviation, layered = float(self.at(f"{at}.deviation")), f"{at}.mean" in self.values
        mean = float(self.at(f"{at}.mean")) if layered else 0.0
        gain, n = self.trace[f"{at}.gamma"], len(normed)
        shift = self.trace[f"{at}.beta"].tolist() if f"{at}.beta" in self.trace else None
        centred = [float(value) * deviation for value in normalised[:TERMS]]
        lines = []
        if layered:
            terms = " + ".join(_signed(value + mean) for value in centred)
            numbers = f"({terms} + …)/{n} = {_number(mean)}"
            lines.append(Line("mean", f"x = {self.symbol(reads)}, μ = Σ x_i / {n}", numbers))
        root = f"σ = √(Σ (x_i − μ)² / {n} + ε)"
        if not layered:
            root = f"x = {self.symbol(reads)}, rms = √(Σ x_i² / {n} + ε)"
        squares = " + ".join(f"({_number(value)})²" for value in centred)
        numbers = f"√(({squares} + …)/{n}) = {_number(deviation)}"
        lines.append(Line("deviation" if layered else "root mean square", root, numbers))
        formula = "x̂ = (x − μ)/σ" if layered else "x̂ = x/rms"
        lines.append(Line("normalised", formula, _vector(normalised), normalised))
        shifts = [""] * TERMS if shift is None else [f" + {_signed(b)}" for b in shift]
        scaled = ", ".join(
            f"{_signed(g)}·{_signed(x)}{b}"
            for g, x, b in zip(gain.tolist()[:TERMS], normalised.tolist(), shifts, strict=False)
        )
        formula = f"{self.symbol(result)} = γ·x̂{'' if shift is None else ' + β'}"
        name = "LayerNorm" if layered else "RMSNorm"
        return [*lines, Line(name, formula, f"[{scaled}, …] = {_vector(normed)}", normed)]


def _attend(work: _Work, at: str, sublayer: str, head: int) -> tuple[list[Line], list[KeyRow]]:
    """The formulas from the query to Concat·W_O, and what becomes of each key."""
    trace, row, position = work.trace, work.row, work.position
    attention = getattr(work.block, sublayer)
    query, key, scores, weights, heads = (
        work.values[f"{at}.{name}"][row].detach().float()
        for name in ("query", "key", "scores", "weights", "heads")
    )
    group = head * len(key) // len(query)
    names = trace.tokens("source" if "cross" in at or at.startswith("encoder") else "target", row)
    q, k = query[head, position], key[group][: len(names)]
    products = k @ q
    shares, score = weights[head, position][: len(names)], scores[head, position][: len(names)]
    scaled = score.where(score.isfinite(), products * attention.scale)
    mask = (score - scaled).where(score.isfinite(), score)
    rows = [
        KeyRow(j, name, *(float(x[j]) for x in (products, scaled, mask, shares)))
        for j, name in enumerate(names)
    ]
    best = int(shares.argmax())
    token = visible(names[best])
    divisor = 1 / attention.scale if attention.scale else 1.0
    mixed = heads[head, position]
    others = [j for j in shares.argsort(descending=True).tolist() if shares[j] > 0][:TERMS]
    sums = " + ".join(f"{float(shares[j]):.2f}·v_{visible(names[j])}" for j in others)
    more = " + …" if int((shares > 0).sum()) > len(others) else ""
    exponents = [f"e^{_number(float(score[j]))}" for j in others]
    lines = [
        Line("query", trace.formula(f"{at}.query"), f"q = {_vector(q)}", q, QUERY),
        Line(
            "q·k_j for each j",
            f"q·k_j, ÷ √d_k = {_number(divisor)}, + M",
            f"q·k_{token} = {_terms_of_product(q, k[best])} + … = "
            f"{_number(float(products[best]))}; s_{token} = {_number(float(score[best]))}",
            products,
            QUERY,
        ),
        Line(
            "softmax",
            "a_j = e^(s_j) / Σ e^(s_i)",
            f"a_{token} = {exponents[0]} / ({' + '.join(exponents)}{more}) "
            f"= {float(shares[best]):.3f}",
            shares,
            ATTENTION,
        ),
        Line("weighted values", "Σ_j a_j·v_j", f"{sums}{more} = {_vector(mixed)}", mixed, VALUE),
    ]
    return lines + _projection(work, at, attention, head, heads), rows


def _projection(work: _Work, at: str, attention: Any, head: int, heads: Tensor) -> list[Line]:
    """Concat(head_1 … head_h)·W_O, as this head's part, the others' and the bias."""
    width, matrix = attention.d_head, attention.output.weight.detach().float()
    whole = work.at(f"{at}.output")
    own = matrix[:, head * width : (head + 1) * width] @ heads[head, work.position].to(matrix)
    bias = attention.output.bias
    rest = whole - own - (0 if bias is None else bias.detach().float())
    about = "head {head}: {own} + others: {rest}"
    numbers = localized(about, head=head, own=_vector(own), rest=_vector(rest))
    numbers += "" if bias is None else f" + b_O: {_vector(bias.detach().float())}"
    formula = work.trace.formula(f"{at}.output")
    return [Line("all heads together", formula, f"{numbers} = {_vector(whole)}", whole)]


def _feed_forward(work: _Work, at: str) -> list[Line]:
    trace, layer = work.trace, work.block.feed_forward
    lines = work.norm_before(at)
    if f"{at}.hidden" in trace:
        hidden, part = work.at(f"{at}.hidden"), "gate" if layer.gated else "1"
        total = float(work.at(f"{at}.gate" if layer.gated else f"{at}.inner")[0])
        first = trace[f"{at}.W_{part}"][:, 0].float()
        name = "gate of the first neuron" if layer.gated else "first neuron"
        numbers = f"{_terms_of_product(work.read(at), first)} + … = {_number(total)}"
        bias = "" if layer.inner.bias is None else " + b₁"
        reads = work.symbol(f"{at}.norm" if f"{at}.norm" in work.values else f"{at}.skip")
        formula = f"x = {reads}, x·{'W_gate' if layer.gated else 'W₁'}{bias}"
        lines.append(Line(name, formula, numbers))
        fired = int((hidden > 0).sum())
        about = localized("{count} of {all} above 0", count=fired, all=len(hidden))
        formula = trace.formula(f"{at}.hidden")
        lines.append(Line("inner layer", formula, f"{_vector(hidden)}, {about}", hidden))
    output = work.at(f"{at}.output")
    lines.append(Line("feed-forward", trace.formula(f"{at}.output"), _vector(output), output))
    return lines + work.add(at)


def _terms_of_product(a: Tensor, b: Tensor) -> str:
    pairs = zip(a[:TERMS].tolist(), b[:TERMS].tolist(), strict=True)
    return " + ".join(f"{_signed(x)}·{_signed(y)}" for x, y in pairs)


def _terms(a: Tensor, b: Tensor) -> str:
    pairs = zip(a[:TERMS].tolist(), b[:TERMS].tolist(), strict=True)
    return ", ".join(f"{_number(x)} + {_signed(y)}" for x, y in pairs)


def _vector(x: Tensor) -> str:
    more = ", …" if len(x) > TERMS else ""
    return f"[{', '.join(_number(value) for value in x[:TERMS].tolist())}{more}]"


def _signed(value: float) -> str:
    return f"({_number(value)})" if value < 0 else _number(value)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "−∞" if value < 0 else "∞"
    return decimal(value, ".2f" if abs(value) < 100 else ".0f")


def _draw_keys(axes: Any, keys: Sequence[KeyRow], y: float) -> float:
    """Draw the table of keys with a bar per weight; returns where it ends."""
    columns = (0.24, 0.36, 0.44, 0.52, 0.60, 0.68)
    plain: dict[str, Any] = {"va": "top", "fontsize": 8, "parse_math": False}
    for x, name in zip(columns, localized_each(*KEY_HEAD), strict=True):
        axes.text(x, y, name, color=SOFT, **plain)
    for row in keys:
        y -= 0.2
        for x, cell in zip(columns, row.cells(), strict=True):
            axes.text(x, y, cell, **plain)
        axes.barh(y - 0.055, 0.24 * row.weight, 0.12, left=0.75, color=ATTENTION)
    return y - 0.36


def _chosen(question: Question) -> tuple[str, int, int, int]:
    """Attention, layer, head and position that a question is about."""
    trace = the_trace(question)
    kind = next(iter(own_kinds(trace, question.attention).values()))
    layer = check_choice(question.layers[:1] or (0,), count_layers(trace, kind), "layer")[0]
    head = check_choice(question.heads[:1] or (0,), trace.sizes["H"], "head")[0]
    names = trace.tokens(SIDES[kind.partition(".")[0]])
    return kind, layer, head, token_position(question, names, len(names) // 2)


def _answer(question: Question) -> Hand:
    return hand(the_trace(question), *_chosen(question))


def _lack(question: Question) -> str | None:
    _chosen(question)
    return lacks_known_norms(question)


VIEW = View(
    "By hand",
    "One token in one head and one layer: every formula, and below it the same formula with this "
    "text's numbers (the first terms of each sum).",
    _answer,
    _lack,
)
