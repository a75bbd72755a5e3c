"""The weights of a model under the notes' names: W_Q, b_1, γ …, each turned so that it is x·W.

Fused matrices are split, quantised ones become floats, and updates (LoRA) are added: what is handed
out is what the layer multiplies with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from qkv.inspect.trace.notation import Quantity
from qkv.inspect.trace.opened import gain_of
from qkv.model import Decoder, Encoder, EncoderDecoder, Model, Stack
from qkv.model.convolution import Neighbours
from qkv.model.experts import Experts
from qkv.model.heads import HeadLayer, LabelHead
from qkv.model.lora import LoRALinear
from qkv.model.norm import QueryKeyNorm
from qkv.model.patches import Patches
from qkv.model.positions import Disentangled, Learned, Relative
from qkv.model.positions.relative import LearnedRelative
from qkv.model.projections import QueryValueBias
from qkv.model.quantized import Quantized

Part = Callable[[Tensor], Tensor]
WHOLE = slice(None)


@dataclass(frozen=True)
class Weight(Quantity):
    """A weight, or one of those that a fused matrix holds."""

    parameter: Callable[[], Tensor | None] = lambda: None  # to differentiate by; None: integers
    part: Part = lambda stored: stored  # of the parameter, as the notes have it

    @property
    def has_gradient(self) -> bool:
        """Whether it is stored as floats."""
        return self.parameter() is not None


def weight_quantities(model: Model) -> dict[str, Weight]:
    """List the weights of a model by their keys."""
    config = model.config
    same = {"G·K": "G·K", "H·K": "H·K", "E": "E" if config.d_embedding else "D"}
    if config.kv_heads == config.n_heads:
        same["G·K"] = "H·K"
    if config.n_heads * config.d_head == config.d_model:
        same |= {letters: "D" for letters, named in same.items() if named == "H·K"}
    return {
        weight.key: replace(weight, axes=tuple(same.get(axis, axis) for axis in weight.axes))
        for weight in _every(model)
    }


def _every(model: Model) -> Iterator[Weight]:
    if isinstance(model, EncoderDecoder):
        yield _table("source.E", "E_src", model.source_embedding.table, ("V_src", "E"))
        yield from _stack(model.encoder, "encoder", "source")
        yield _table("target.E", "E_tgt", model.target_embedding.table, ("V", "E"))
        yield from _stack(model.decoder, "decoder", "target")
    elif isinstance(model, Decoder):
        yield _table("target.E", "E", model.embedding.table, ("V", "E"))
        yield from _stack(model.decoder, "decoder", "target")
    else:
        yield from _encoder(model)
    if isinstance(model, EncoderDecoder | Decoder):
        yield from _linear("W_out", model.output.projection, ("D", "V"))


def _encoder(model: Encoder) -> Iterator[Weight]:
    config = model.config
    if isinstance(model.embedding, Patches):
        patches = model.embedding
        yield from _linear("source.W_patch", patches.projection, ("pixels", "E"))
        symbol = "vector of the first token"
        yield _weight("source.first", symbol, ("E",), lambda: patches.first)
    else:
        yield _table("source.E", "E", model.embedding.table, ("V", "E"))
    if model.segments is not None:
        yield _table("source.segment_table", "segments", model.segments, ("segments", "E"))
    yield from _stack(model.encoder, "encoder", "source")
    if not isinstance(model.pooler.dense, nn.Identity):
        yield from _linear("W_P", model.pooler.dense, ("D", "D"))
    head: Any = model.head
    n_outputs = "V" if config.head == "masked" else "C"
    if not isinstance(head, nn.Identity):
        yield from _head("", head, n_outputs, "E" if config.head == "masked" else "D")
    if model.pair_head is not None:
        yield from _head("pair_head.", model.pair_head, "2", "D")
    if model.vector is not None:
        yield from _linear("W_vector", model.vector.dense, ("D", "d_vector"))


def _head(at: str, head: Any, n_outputs: str, width: str) -> Iterator[Weight]:
    layer = head.layer if isinstance(head, LabelHead) else head
    if isinstance(layer, HeadLayer):
        yield from _linear(f"{at}head.W_head", layer.dense, ("D", width))
        yield from _norm(f"{at}head.norm", layer.norm, width)
    yield from _linear(f"{at}W_out", head.projection, (width, n_outputs))


def _stack(stack: Stack, name: str, side: str) -> Iterator[Weight]:
    yield from _positions(stack.positions, name, side)
    yield from _norm(f"{side}.norm", stack.input_norm, "E")
    if not isinstance(stack.widen, nn.Identity):
        yield from _linear(f"{side}.W_E", stack.widen, ("E", "D"))
    for layer in range(len(stack.windows)):
        yield from _block(stack.blocks[layer % len(stack.blocks)], f"{name}.{layer}")
        if layer == 0 and stack.neighbours is not None:
            yield from _convolution(stack.neighbours, f"{name}.0.convolution")
    yield from _norm(f"{name}.norm", stack.norm, "D")


def _positions(scheme: nn.Module, name: str, side: str) -> Iterator[Weight]:
    """Tables of positions (of the input) and of distances (of the stack's attention)."""
    if isinstance(scheme, Learned):
        yield _table(f"{side}.position_table", "PE", scheme.table, ("L", "E"))
    relative = scheme.relative if isinstance(scheme, LearnedRelative) else scheme
    if isinstance(relative, Relative):
        formula = "bias of each bucket"
        yield _table(f"{name}.bias_table", formula, relative.table, ("N", "H"))
    if isinstance(scheme, Disentangled):
        formula = "vector of each distance"
        yield _table(f"{name}.distance_table", formula, scheme.table, ("2N", "D"))
        yield from _norm(f"{name}.distance_norm", scheme.norm, "D")


def _block(block: Any, at: str) -> Iterator[Weight]:
    for name in ("self_attention", "cross_attention"):
        attention = getattr(block, name, None)
        if attention is not None:
            yield from _attention(attention, f"{at}.{name}")
            yield from _residual(getattr(block, f"{name}_residual"), f"{at}.{name}")
    layer, name = block.feed_forward, f"{at}.feed_forward"
    if isinstance(layer, Experts):
        yield _matrix(f"{name}.W_R", layer.router.projection, ("D", "X"))
        for number, expert in enumerate(layer.experts):
            yield from _feed_forward(expert, f"{name}.expert.{number}")
    else:
        yield from _feed_forward(layer, name)
    yield from _residual(block.feed_forward_residual, name)


def _residual(residual: Any, at: str) -> Iterator[Weight]:
    yield from _norm(f"{at}.norm", residual.norm, "D")
    yield from _norm(f"{at}.output_norm", residual.output_norm, "D")


def _attention(attention: Any, at: str) -> Iterator[Weight]:
    wide, narrow = (n * attention.d_head for n in (attention.n_heads, attention.n_kv_heads))
    ends = [0, wide, wide + narrow, wide + 2 * narrow]
    query, key, value = (slice(*pair) for pair in pairwise(ends))
    layers: dict[str, Any] = dict.fromkeys("QKV", getattr(attention, "query_key_value", None))
    if layers["Q"] is None:
        layers = {"Q": attention.query, "K": attention.key_value, "V": attention.key_value}
        query, key, value = WHOLE, slice(0, narrow), slice(narrow, 2 * narrow)
    rows = {"Q": (query, "H·K"), "K": (key, "G·K"), "V": (value, "G·K")}
    for letter, (part, axis) in rows.items():
        yield _matrix(f"{at}.W_{letter}", layers[letter], ("D", axis), part)
    for letter, (part, axis) in rows.items():
        if layers[letter].bias is not None:
            yield _bias(f"{at}.b_{letter}", layers[letter], axis, part)
    own = getattr(attention, "bias", None)
    if isinstance(own, QueryValueBias):
        yield _weight(f"{at}.b_Q", "b_Q", ("H·K",), lambda: own.query)
        yield _weight(f"{at}.b_V", "b_V", ("G·K",), lambda: own.value)
    distances = getattr(attention, "position_projections", None)
    if distances is not None:
        yield from _linear(f"{at}.W_Q_r", distances.query, ("D", "H·K"))
        yield _matrix(f"{at}.W_K_r", distances.key, ("D", "G·K"))
    if isinstance(attention.norm, QueryKeyNorm):
        yield from _norm(f"{at}.query_norm", attention.norm.query, "K")
        yield from _norm(f"{at}.key_norm", attention.norm.key, "K")
    yield from _linear(f"{at}.W_O", attention.output, ("H·K", "D"))


def _feed_forward(layer: Any, at: str) -> Iterator[Weight]:
    width, inner = layer.outer.in_features, WHOLE
    if layer.gated:
        inner = slice(width, 2 * width)
        yield from _linear(f"{at}.W_gate", layer.inner, ("D", "F"), slice(0, width))
    yield from _linear(f"{at}.W_1", layer.inner, ("D", "F"), inner)
    yield from _linear(f"{at}.W_2", layer.outer, ("F", "D"))


def _convolution(neighbours: Neighbours, at: str) -> Iterator[Weight]:
    layer = neighbours.convolution

    def turned(weight: Tensor) -> Tensor:
        return weight.permute(2, 1, 0)  # (taps, in, out)

    axes = ("taps", "D", "D")
    yield _weight(f"{at}.W_conv", "W_conv", axes, lambda: layer.weight, part=turned)
    yield _bias(f"{at}.b_conv", layer, "D")
    yield from _norm(f"{at}.norm", neighbours.norm, "D")


def _norm(at: str, norm: nn.Module, width: str) -> Iterator[Weight]:
    """γ, with the 1 that Gemma adds to it, and β."""
    if isinstance(norm, nn.Identity):
        return
    scaled: Any = norm
    yield _weight(f"{at}.gamma", "γ", (width,), lambda: gain_of(norm), lambda: scaled.weight)
    if getattr(norm, "bias", None) is not None:
        yield _weight(f"{at}.beta", "β", (width,), lambda: scaled.bias)


def _linear(key: str, layer: Any, axes: tuple[str, str], rows: slice = WHOLE) -> Iterator[Weight]:
    """Some of a linear layer's outputs: W_… as (in, out) and, where it has one, b_…."""
    yield _matrix(key, layer, axes, rows)
    if layer.bias is not None:
        yield _bias(key.replace("W_", "b_"), layer, axes[1], rows)


def _matrix(key: str, layer: Any, axes: tuple[str, str], rows: slice = WHOLE) -> Weight:
    symbol, parameter = key.rpartition(".")[2], lambda: _parameter(layer)
    return _weight(key, symbol, axes, lambda: layer.weight, parameter, lambda x: x[rows].T)


def _bias(key: str, layer: Any, axis: str, rows: slice = WHOLE) -> Weight:
    symbol = key.rpartition(".")[2]
    return _weight(key, symbol, (axis,), lambda: layer.bias, part=lambda x: x[rows])


def _table(key: str, symbol: str, table: Any, axes: tuple[str, str]) -> Weight:
    return _weight(key, symbol, axes, lambda: table.weight, lambda: _parameter(table))


def _weight(
    key: str,
    symbol: str,
    axes: tuple[str, ...],
    read: Callable[[], Tensor],
    parameter: Callable[[], Tensor | None] | None = None,  # by default what is read
    part: Part = lambda stored: stored,
) -> Weight:
    def make() -> Tensor:
        return part(read().detach()).clone()

    name, stored = f"weight: {symbol}", parameter or read
    return Weight(key, name, symbol, axes, make=make, is_weight=True, parameter=stored, part=part)


def _parameter(layer: Any) -> Tensor | None:
    """The stored floats of a layer; under an update the frozen ones, which add up with it."""
    while isinstance(layer, LoRALinear):
        layer = layer.base
    return None if isinstance(layer, Quantized) else layer.weight
