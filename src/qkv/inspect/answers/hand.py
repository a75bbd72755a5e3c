"""By hand: one token's way through one head and one layer, each formula with its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text
from torch import Tensor, nn

from qkv.errors import UserError
from qkv.inspect.answers.answer import Answer, Question, View, the_trace, token_position
from qkv.inspect.answers.attention import KINDS, check_choice, count_layers
from qkv.inspect.draw import (
    ATTENTION,
    INK,
    QUERY,
    SOFT,
    VALUE,
    Table,
    caption,
    clipped,
    localized,
    new_figure,
    styled,
    visible,
)
from qkv.inspect.draw.language import localized_formula
from qkv.model.norm import RMSNormPlusOne

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkv.inspect.trace.trace import Trace

TERMS = 3  # terms of a sum that are written out
ATTENTIONS = {
    "encoder.self_attention": "self-attention of the encoder",
    "decoder.self_attention": "self-attention of the decoder",
    "decoder.cross_attention": "cross-attention",
}
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
            attention=localized(ATTENTIONS[self.attention]),
        )

    @property
    def key_table(self) -> Table:
        """A row per key."""
        head = ("key j", "q·k_j", "÷ √d_k", "M", "score", "softmax")
        return Table([localized(name) for name in head], [row.cells() for row in self.keys])

    def parts(self) -> list[Table]:
        """The formulas up to the products, the keys, and the other formulas."""
        head = [localized(name) for name in ("step", "formula", "with this text's numbers")]
        rows = [
            (localized(line.name), localized_formula(line.formula), line.numbers)
            for line in self.lines
        ]
        first = Table(head, rows[: self.before_keys], self.title)
        return [first, self.key_table, Table(head, rows[self.before_keys :])]

    def html(self) -> Markup:
        """Return the tables."""
        return Markup().join(part.html() for part in self.parts())

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

    def draw(self) -> Figure:
        """Draw formulas with their numbers below, and the keys as a table with bars."""
        keys = sorted(sorted(self.keys, key=lambda row: -row.weight)[:MAX_KEYS], key=_position)
        height = 0.52 * len(self.lines) + 0.2 * (len(keys) + 2) + 0.9
        with styled():
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
                numbers = clipped(line.numbers, 118)
                axes.text(0.24, y - 0.2, numbers, fontsize=8, color=line.colour, **plain)
                y -= 0.52
            left_out = len(self.keys) - len(keys)
            note = "{count} keys with less weight are not shown."
            caption(figure, self.title, localized(note, count=left_out) if left_out else "")
        return figure


def hand(trace: Trace, kind: str, layer: int, head: int, position: int, row: int = 0) -> Hand:
    """Write out what one head and one layer do with the token at a position."""
    stack, _, attention = kind.partition(".")
    at = f"{stack}.{layer}"
    work = _Work(trace, stack, layer, row, position)
    before = work.stream_before(attention)
    lines, read = work.read(f"{at}.{attention}", before)
    more, keys = _attend(work, f"{at}.{attention}", attention, head, read)
    first = len(lines) + 2
    lines += more
    lines += work.add(f"{at}.{attention}", attention, before, "h′")
    last = trace.names(f"{at}.*_attention.residual")[-1]
    stream = work.at(last)
    if last != f"{at}.{attention}.residual":
        name = last.split(".")[2].replace("_", "-")
        lines.append(Line(f"after {name}", "h″", _vector(stream), stream))
    lines += _feed_forward(work, f"{at}.feed_forward", stream, before)
    side = "source" if stack == "encoder" else "target"
    token = trace.tokens(side, row)[position]
    return Hand(token, position, kind, layer, head, tuple(lines), tuple(keys), first)


class _Work:
    """Vectors of one token of one layer."""

    def __init__(self, trace: Trace, stack: str, layer: int, row: int, position: int) -> None:
        self.trace, self.row, self.position = trace, row, position
        self.stack, self.layer = stack, layer
        blocks = getattr(trace.model, stack).blocks
        self.block: Any = blocks[layer % len(blocks)]
        side = "source" if stack == "encoder" else "target"
        self.input_key = f"{side}.input"
        if layer:
            self.input_key = f"{stack}.{layer - 1}.feed_forward.residual"
            convolution = f"{stack}.0.convolution.residual"
            self.input_key = convolution if layer == 1 and convolution in trace else self.input_key

    def at(self, key: str) -> Tensor:
        """A quantity's vector of the token."""
        return self.trace[key][self.row, self.position].detach().float()

    def stream_before(self, sublayer: str) -> Tensor:
        """The residual stream that a sublayer's output is added to."""
        own = f"{self.stack}.{self.layer}.self_attention.residual"
        return self.at(own if sublayer == "cross_attention" else self.input_key)

    def read(self, at: str, before: Tensor) -> tuple[list[Line], Tensor]:
        """What a sublayer reads: the stream, or its norm."""
        residual = getattr(self.block, f"{at.rpartition('.')[2]}_residual")
        lines = [Line("what comes in", "h", _vector(before), before)]
        if not residual.pre or isinstance(residual.norm, nn.Identity):
            return lines, before
        return [*lines, *_norm(residual.norm, before, "h")], _normed(residual.norm, before)

    def add(self, at: str, sublayer: str, before: Tensor, symbol: str) -> list[Line]:
        """The residual connection around a sublayer, and the norm after it."""
        residual = getattr(self.block, f"{sublayer}_residual")
        added = self.at(f"{at}.output")
        lines = []
        if not isinstance(residual.output_norm, nn.Identity):
            lines += _norm(residual.output_norm, added, symbol)
            added = _normed(residual.output_norm, added)
        total = before + added
        numbers = f"[{_terms(before, added)}, …] = {_vector(total)}"
        lines.append(Line("residual connection", f"h + {symbol}", numbers, total))
        return lines if residual.pre else lines + _norm(residual.norm, total, f"h + {symbol}")


def _attend(
    work: _Work, at: str, sublayer: str, head: int, read: Tensor
) -> tuple[list[Line], list[KeyRow]]:
    """The formulas from the query to Concat·W_O, and what becomes of each key."""
    trace, row, position = work.trace, work.row, work.position
    attention = getattr(work.block, sublayer)
    keys = ("query", "key", "scores", "weights", "heads")
    found = trace.peek([f"{at}.{key}" for key in keys])
    query, key, scores, weights, heads = (x[row].detach().float() for x in found.values())
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
    formula = "h′ = Concat(head_1 … head_h)·W_O"
    return [Line("all heads together", formula, f"{numbers} = {_vector(whole)}", whole)]


def _feed_forward(work: _Work, at: str, stream: Tensor, block_input: Tensor) -> list[Line]:
    trace, layer = work.trace, work.block.feed_forward
    read_from = block_input if work.block.parallel else stream
    residual = work.block.feed_forward_residual
    lines = []
    if residual.pre and not isinstance(residual.norm, nn.Identity):
        lines += _norm(residual.norm, read_from, "h″")
        read_from = _normed(residual.norm, read_from)
    if f"{at}.hidden" in trace:
        hidden, inner = work.at(f"{at}.hidden"), layer.inner
        first = inner.weight.detach().float()[0]
        total = float(first @ read_from) + (
            0.0 if inner.bias is None else float(inner.bias.detach()[0])
        )
        formula = trace.formula(f"{at}.hidden")
        name = "gate of the first neuron" if layer.gated else "first neuron"
        numbers = f"{_terms_of_product(read_from, first)} + … = {_number(total)}"
        bias = "" if inner.bias is None else " + b₁"
        lines.append(Line(name, f"x·{'W_gate' if layer.gated else 'W₁'}{bias}", numbers))
        fired = int((hidden > 0).sum())
        about = localized("{count} of {all} above 0", count=fired, all=len(hidden))
        lines.append(Line("inner layer", formula, f"{_vector(hidden)}, {about}", hidden))
    output = work.at(f"{at}.output")
    lines.append(Line("feed-forward", trace.formula(f"{at}.output"), _vector(output), output))
    return lines + work.add(at, "feed_forward", stream, "FFN")


def _norm(norm: nn.Module, x: Tensor, symbol: str) -> list[Line]:
    """The formulas of a norm: mean, deviation, normalised, scaled."""
    mean, deviation = _moments(norm, x)
    normalised, gain, shift = (x - mean) / deviation, _gain(norm), getattr(norm, "bias", None)
    result = _normed(norm, x)
    layered = isinstance(norm, nn.LayerNorm)
    n = len(x)
    terms = " + ".join(map(_signed, x[:TERMS].tolist()))
    lines = []
    if layered:
        numbers = f"({terms} + …)/{n} = {_number(mean)}"
        lines.append(Line("mean", f"μ = Σ ({symbol})_i / {n}", numbers))
    root = f"σ = √(Σ (x_i − μ)² / {n} + ε)" if layered else f"rms = √(Σ x_i² / {n} + ε)"
    squares = " + ".join(f"({_number(float(value - mean))})²" for value in x[:TERMS])
    numbers = f"√(({squares} + …)/{n}) = {_number(deviation)}"
    lines.append(Line("deviation" if layered else "root mean square", root, numbers))
    centred = "(x − μ)/σ" if layered else "x/rms"
    lines.append(Line("normalised", f"x̂ = {centred}", _vector(normalised), normalised))
    shifts = [""] * TERMS if shift is None else [f" + {_signed(b)}" for b in shift[:TERMS].tolist()]
    scaled = ", ".join(
        f"{_signed(g)}·{_signed(x)}{b}"
        for g, x, b in zip(gain[:TERMS].tolist(), normalised[:TERMS].tolist(), shifts, strict=True)
    )
    formula = "γ·x̂ + β" if shift is not None else "γ·x̂"
    name = "LayerNorm" if layered else "RMSNorm"
    return [*lines, Line(name, formula, f"[{scaled}, …] = {_vector(result)}", result)]


def _moments(norm: Any, x: Tensor) -> tuple[float, float]:
    """Mean (0 for RMSNorm) and deviation that a norm divides by."""
    epsilon = norm.epsilon if isinstance(norm, RMSNormPlusOne) else norm.eps
    mean = float(x.mean()) if isinstance(norm, nn.LayerNorm) else 0.0
    return mean, math.sqrt(float((x - mean).pow(2).mean()) + (epsilon or 0.0))


def _gain(norm: Any) -> Tensor:
    weight: Tensor = norm.weight.detach().float()
    return 1 + weight if isinstance(norm, RMSNormPlusOne) else weight


def _normed(norm: Any, x: Tensor) -> Tensor:
    result: Tensor = norm(x.to(norm.weight)).detach().float()
    return result


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
    text = f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
    return text.replace("-", "−")


def _position(row: KeyRow) -> int:
    return row.position


def _draw_keys(axes: Any, keys: Sequence[KeyRow], y: float) -> float:
    """Draw the table of keys with a bar per weight; returns where it ends."""
    columns = (0.24, 0.36, 0.44, 0.52, 0.60, 0.68)
    plain: dict[str, Any] = {"va": "top", "fontsize": 8, "parse_math": False}
    head = ("key j", "q·k_j", "÷ √d_k", "M", "score", "softmax")
    for x, name in zip(columns, head, strict=True):
        axes.text(x, y, localized(name), color=SOFT, **plain)
    for row in keys:
        y -= 0.2
        for x, cell in zip(columns, row.cells(), strict=True):
            axes.text(x, y, cell, **plain)
        axes.barh(y - 0.07, 0.24 * row.weight, 0.12, left=0.75, color=ATTENTION)
    return y - 0.36


def _chosen(question: Question) -> tuple[str, int, int, int]:
    """Attention, layer, head and position that a question is about."""
    trace = the_trace(question)
    kinds = {name: kind for name, kind in KINDS.items() if count_layers(trace, kind)}
    if question.attention and question.attention not in kinds:
        asked = question.attention
        raise UserError(f"This model has no {asked} attention; it has {' and '.join(kinds)}.")
    kind = kinds[question.attention] if question.attention else next(iter(kinds.values()))
    layer = check_choice(question.layers[:1] or (0,), count_layers(trace, kind), "layer")[0]
    head = check_choice(question.heads[:1] or (0,), trace.sizes["H"], "head")[0]
    names = trace.tokens("source" if kind.startswith("encoder") else "target")
    return kind, layer, head, token_position(question, names, len(names) // 2)


def _answer(question: Question) -> Hand:
    return hand(the_trace(question), *_chosen(question))


def _lack(question: Question) -> None:
    _chosen(question)


VIEW = View(
    "By hand",
    "One token in one head and one layer: every formula, and below it the same formula with this "
    "text's numbers (the first terms of each sum).",
    _answer,
    _lack,
)
