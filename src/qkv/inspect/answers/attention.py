"""Attention maps of a trace: layers × heads, tokens on both axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from markupsafe import Markup
from rich.console import RenderableType
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.answers.answer import Answer, MapAnswer, Question, View, the_trace
from qkv.inspect.draw.heat_map import HeatMap
from qkv.inspect.draw.language import localized
from qkv.inspect.trace.inputs import SIDES
from qkv.inspect.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "encoder.self_attention": "Self-attention of the encoder",
    "decoder.self_attention": "Masked self-attention of the decoder",
    "decoder.cross_attention": "Cross-attention: target tokens look at source tokens",
}
NAMES = {
    "encoder.self_attention": "self-attention of the encoder",
    "decoder.self_attention": "self-attention of the decoder",
    "decoder.cross_attention": "cross-attention",
}
KINDS = dict(zip(("encoder", "masked", "cross"), TITLES, strict=True))  # names of the options
MAX_PANELS = 48  # maps in one figure; of more, the last layers are drawn


@dataclass(frozen=True)
class AttentionMaps(MapAnswer):
    """Weights (layers, heads, T, S) with the tokens that look and those that are looked at."""

    title: str
    weights: Tensor
    allowed: Tensor  # (layers, 1, T, S) bool: what the mask lets a token see
    rows: tuple[str, ...]  # tokens that look
    columns: tuple[str, ...]  # tokens that are looked at
    layers: tuple[int, ...]
    heads: tuple[int, ...]

    def parts(self) -> list[HeatMap]:
        """A map per head, layer by layer."""
        names = [
            localized("layer {layer}, head {head}", layer=layer, head=head)
            for layer in self.layers
            for head in self.heads
        ]
        title = localized(self.title)
        if len(names) == 1:
            title, names = localized("{title}, {name}", title=title, name=names[0]), [""]
        return [HeatMap(self.weights, self.rows, self.columns, title, names, self.allowed)]

    def mean(self) -> HeatMap:
        """A map per layer: the mean over heads."""
        name, count = "layer {layer}, mean of {count} heads", len(self.heads)
        names = [localized(name, layer=layer, count=count) for layer in self.layers]
        weights, title = self.weights.mean(dim=1, keepdim=True), localized(self.title)
        return HeatMap(weights, self.rows, self.columns, title, names, self.allowed)


@dataclass(frozen=True)
class Attention(Answer):
    """The attention maps that a question is about, of each kind; computed when they are shown."""

    question: Question
    kinds: dict[str, str]

    def figure(self) -> Figure:
        """Draw the kind nearest to the output."""
        *others, (name, kind) = self.kinds.items()
        if others:
            between = f" {localized('or')} "
            rest = between.join(f"--attention {other}" for other, _ in others)
            remark = "attention: {name} is drawn; {rest} shows the others"
            self.question.remark(localized(remark, name=name, rest=rest))
        return self._maps(kind).draw()

    def html(self) -> Markup:
        """Return the maps of every kind."""
        return Markup().join(self._maps(kind).html() for kind in self.kinds.values())

    def numbers(self) -> Any:
        """Return the maps of every kind."""
        return {name: self._maps(kind).numbers() for name, kind in self.kinds.items()}

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield the named layers and heads, by default the mean over heads of the last layer."""
        trace, heads = the_trace(self.question), self.question.heads
        for kind in self.kinds.values():
            layers = self.question.layers or [count_layers(trace, kind) - 1]
            maps = trace.maps(kind, layers, heads or None)
            yield from maps.text(width) if heads else maps.mean().text(width)

    def _maps(self, kind: str) -> AttentionMaps:
        """The named layers and heads, or the last layers if they are too many for a figure."""
        question, trace = self.question, the_trace(self.question)
        layers: Sequence[int] = question.layers
        n_layers, n_heads = count_layers(trace, kind), len(question.heads) or trace.sizes["H"]
        if not layers:
            many = n_layers * n_heads > MAX_PANELS
            fit = min(4, max(1, MAX_PANELS // n_heads)) if many else n_layers
            layers = range(n_layers - fit, n_layers)
            if fit < n_layers:
                remark = "attention: the last {shown} of {count} layers; --layer shows others"
                question.remark(localized(remark, shown=fit, count=n_layers))
        return trace.maps(kind, layers, question.heads or None)


def attention_maps(
    trace: Trace,
    kind: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    row: int = 0,
) -> AttentionMaps:
    """Collect maps of one kind ("encoder.self_attention"), by default the last one."""
    kinds = list(own_kinds(trace).values())
    kind = kind or kinds[-1]
    if kind not in kinds:
        raise UserError(f"This model has no {kind!r}; it has {', '.join(kinds)}.")
    stack, _, name = kind.partition(".")
    layers = check_choice(layers, count_layers(trace, kind), "layer")
    heads = check_choice(heads, trace.sizes["H"], "head")
    parts = [_layer(trace, f"{stack}.{layer}.{name}", heads) for layer in layers]
    rows = trace.tokens(SIDES[stack], row)
    columns = rows if name == "self_attention" else trace.tokens("source", row)
    weights, allowed = (
        torch.stack([value[row, :, : len(rows), : len(columns)] for value in values])
        for values in zip(*parts, strict=True)
    )
    return AttentionMaps(
        TITLES[kind],
        weights.float().cpu(),
        allowed.cpu(),
        tuple(rows),
        tuple(columns),
        tuple(layers),
        tuple(heads),
    )


def count_layers(trace: Trace, kind: str) -> int:
    """Number of layers that have a kind of attention."""
    return len(trace.names(kind.replace(".", ".*.") + ".weights"))


def own_kinds(trace: Trace, asked: str = "") -> dict[str, str]:
    """The kinds of attention that a model has, by their options; only the one that is asked for."""
    own = {name: kind for name, kind in KINDS.items() if count_layers(trace, kind)}
    if not asked:
        return own
    if asked not in own:
        raise UserError(f"This model has no {asked} attention; it has {' and '.join(own)}.")
    return {asked: own[asked]}


def check_choice(given: Sequence[int] | None, count: int, what: str) -> Sequence[int]:
    """Check the named layers or heads; by default all."""
    for number in given or ():
        if not 0 <= number < count:
            raise UserError(
                f"There is no {what} {number}; this model has {count}, 0 to {count - 1}."
            )
    return given or range(count)


def _layer(trace: Trace, at: str, heads: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Weights of the heads of one layer, (B, heads, T, S), and what the mask allows."""
    keys = [f"{at}.weights", f"{at}.scores"]
    if list(heads) == list(range(trace.sizes["H"])):
        weights, scores = trace.peek(keys).values()
        return weights, ~scores[:, :1].isneginf()
    parts = [trace.peek(keys, head=head) for head in heads]
    weights = torch.cat([part[keys[0]] for part in parts], dim=1)
    return weights, ~parts[0][keys[1]].isneginf()


def _kinds(question: Question) -> dict[str, str]:
    """The named kind, or every kind that has the named layers."""
    trace = the_trace(question)
    own = own_kinds(trace, question.attention)
    highest = max(question.layers, default=-1)
    deep = {name: kind for name, kind in own.items() if highest < count_layers(trace, kind)} or own
    for kind in deep.values():
        check_choice(question.layers, count_layers(trace, kind), "layer")
        check_choice(question.heads, trace.sizes["H"], "head")
    return deep


def _lack(question: Question) -> None:
    _kinds(question)


VIEW = View(
    "Attention",
    "How much each token (row) looks at each other (column); every row sums to 1.",
    lambda question: Attention(question, _kinds(question)),
    _lack,
)
