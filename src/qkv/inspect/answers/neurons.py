"""Neurons of a feed-forward layer: which fire at each token, and which words they promote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import RenderableType
from torch import Tensor

from qkv.inspect.answers.answer import Answer, Question, View, the_trace
from qkv.inspect.answers.attention import check_choice
from qkv.inspect.answers.lens import stack_of
from qkv.inspect.draw.heat_map import HeatMap
from qkv.inspect.draw.labels import decimal, units, visible
from qkv.inspect.draw.language import localized, localized_each
from qkv.inspect.draw.table import Table
from qkv.inspect.trace.inputs import SIDES
from qkv.inspect.trace.opened import gain_of
from qkv.inspect.trace.trace import Trace
from qkv.model import Encoder

MAX_NEURONS = 16  # in a map


@dataclass(frozen=True)
class Neuron:
    """One neuron: where it counts most, and the words whose logits its output raises most there."""

    number: int
    token: str
    activation: float
    effect: float  # |activation| · |row of W₂|: what it adds to the stream at that token
    words: tuple[tuple[str, float], ...]  # with what an activation of 1 adds to their logits


@dataclass(frozen=True)
class Neurons(Answer):
    """Activations (tokens, neurons) of the neurons that add most to the stream of each token."""

    layer: int
    stack: str
    tokens: tuple[str, ...]
    activations: Tensor
    neurons: tuple[Neuron, ...]
    share_above_zero: float

    def parts(self) -> list[HeatMap | Table]:
        """The map of activations, and a row per neuron."""
        title = "{stack}, layer {layer}: {share:.0%} of all activations are above 0"
        stack = localized(self.stack)
        title = localized(title, stack=stack, layer=self.layer, share=self.share_above_zero)
        names = [f"#{neuron.number}\u00a0→\u00a0{neuron.words[0][0]}" for neuron in self.neurons]
        look: Any = {"value": "activation", "down": "token", "across": "neuron"}
        heat = HeatMap(self.activations, self.tokens, names, title, **look)
        rows = [
            (
                f"#{neuron.number}",
                f"{visible(neuron.token)} {decimal(neuron.activation, '+.2f')}",
                units(neuron.words, "+.2f"),
            )
            for neuron in self.neurons
        ]
        head = localized_each("neuron", "counts most at", "and moves these words' logits most")
        return [heat, Table(head, rows)]

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield the map with the numbers of neurons alone above its columns, and the table."""
        heat, table = self.parts()
        assert isinstance(heat, HeatMap)
        numbers = [str(neuron.number) for neuron in self.neurons]
        yield from replace(heat, columns=numbers).text(width)
        yield from table.text(width)


def neurons(trace: Trace, layer: int, top: int = 5, row: int = 0) -> Neurons:
    """Find the neurons of a layer that add most to the stream of each token, in its order.

    What a neuron adds is compared with what the strongest one adds to the same token, since a first
    token that gathers attention can have activations a hundred times as large as all others.
    """
    stack = stack_of(trace, None)
    key = f"{stack}.{layer}.feed_forward.hidden"
    names = trace.tokens(SIDES[stack], row)
    hidden = trace.peek([key])[key][row, : len(names)].detach().float().cpu()  # (N, F)
    blocks = getattr(trace.model, stack).blocks
    outer = blocks[layer % len(blocks)].feed_forward.outer.weight.detach().float().cpu()  # (D, F)
    effects = hidden.abs() * outer.norm(dim=0)  # (N, F)
    shares = effects / effects.amax(dim=1, keepdim=True).clamp(min=1e-30)
    most, places = shares.max(dim=0)
    best = most.topk(min(MAX_NEURONS, len(most))).indices.tolist()
    strongest = sorted(best, key=lambda number: (int(places[number]), -float(most[number])))
    chosen = []
    for number in strongest:
        at = int(places[number])
        activation = float(hidden[at, number])
        words = _words(trace, outer[:, number], activation, top)
        effect = float(effects[at, number])
        chosen.append(Neuron(number, names[at], activation, effect, words))
    share = float((hidden > 0).float().mean())
    picked = hidden[:, strongest]
    return Neurons(layer, stack, tuple(names), picked, tuple(chosen), share)


def _words(
    trace: Trace, direction: Tensor, activation: float, top: int
) -> tuple[tuple[str, float], ...]:
    """The words that a neuron of this activation promotes, with what it adds to their logits."""
    table = _output_table(trace)
    moved = table @ direction.to(table) * activation
    values, ids = moved.float().topk(top)
    name = trace.inputs.spell or trace.inputs.name
    names = [name([id])[0] for id in ids.tolist()]
    return tuple(zip(names, values.tolist(), strict=True))


def _output_table(trace: Trace) -> Tensor:
    """W_out or, of an encoder, the embedding of words, (V, D)."""
    model: Any = trace.model
    if trace.model.config.family == "encoder":
        table: Tensor = model.embedding.table.weight.detach()
        return table
    matrix: Tensor = model.output.projection.weight.detach()
    norm = model.decoder.norm
    if getattr(norm, "weight", None) is None:
        return matrix
    return matrix * gain_of(norm).detach()  # of the last norm, which comes before W_out


def _answer(question: Question) -> Neurons:
    trace = the_trace(question)
    count = _n_layers(trace)
    layer = check_choice(question.layers[:1] or (count - 1,), count, "layer")[0]
    if not question.layers:
        remark = "neurons: of layer {layer}; --layer shows others"
        question.remark(localized(remark, layer=layer))
    with torch.no_grad():
        return neurons(trace, layer, question.top)


def _n_layers(trace: Trace) -> int:
    return len(trace.names(f"{stack_of(trace, None)}.*.feed_forward.output"))


def _lack(question: Question) -> str | None:
    trace = the_trace(question)
    if not trace.names("*.feed_forward.hidden"):
        return "This model's feed-forward layers are experts, each with its own neurons; see flow."
    if isinstance(trace.model, Encoder):
        if trace.model.config.patch_size or trace.model.config.d_embedding:
            return "This model has no words as wide as its stream to read neurons by; see drift."
        if trace.inputs.output_kind not in ("tokens", "none"):
            return "This model says labels and no words, so its neurons promote none; see drift."
    if question.layers:
        check_choice(question.layers[:1], _n_layers(trace), "layer")
    return None


VIEW = View(
    "Neurons",
    "Which neurons of a feed-forward layer add most to each token, and which words each of them "
    "promotes there: its row of W₂ times W_out (of an encoder: times the embedding).",
    _answer,
    _lack,
)
