"""One pass of a model with hooks that hand out quantities or change them: one hook a quantity.

The model knows nothing of this. Hooks are attached while a pass is probed and removed after it; a
formula is computed beside the model's own path only where a step inside of it is asked for
(`opened.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn

from qkv.inspect.trace.inputs import Inputs
from qkv.inspect.trace.opened import Key, Remove, open_attention, open_norm
from qkv.inspect.trace.taps import AllSeen, Probe
from qkv.model import Decoder, Encoder, EncoderDecoder, LabelHead, Model, Stack, evaluating
from qkv.model.convolution import Neighbours
from qkv.model.experts import Experts
from qkv.model.heads import HeadLayer
from qkv.model.norm import QueryKeyNorm


def run(model: Model, inputs: Inputs, probe: Probe) -> None:
    """Run one teacher-forced pass with dropout off, as far as the probe needs it."""
    with evaluating(model), ExitStack() as stack, suppress(AllSeen):
        for remove in attach(model, probe):
            stack.callback(remove)
        forward(model, inputs)


def forward(model: Model, inputs: Inputs) -> Tensor:
    """Call the model on its inputs."""
    source, target = inputs.source, inputs.target
    if isinstance(model, EncoderDecoder):
        assert source is not None and target is not None
        return model(source.tokens, target.tokens, source.layout, target.layout)
    if isinstance(model, Decoder):
        assert target is not None
        return model(target.tokens, target.layout)
    assert source is not None
    return model(source.tokens, source.layout, inputs.segments)


def attach(model: Model, probe: Probe) -> Iterator[Remove]:
    """Attach every hook; each yields the call that removes it."""
    if isinstance(model, Encoder | EncoderDecoder):
        yield from _stack_hooks(model.encoder, "encoder", "source", probe)
    if isinstance(model, Decoder | EncoderDecoder):
        yield from _stack_hooks(model.decoder, "decoder", "target", probe)
        yield _after(model.output, lambda: "logits", probe)
    if isinstance(model, Encoder):
        yield _after(model.pooler, lambda: "pooled", probe)
        yield from _head_hooks(model.head, probe)


def _head_hooks(head: nn.Module, probe: Probe) -> Iterator[Remove]:
    layer = head.layer if isinstance(head, LabelHead) else head
    if isinstance(layer, HeadLayer):
        yield _after(layer.dense, lambda: "head.inner", probe)
        yield from open_norm(layer.norm, lambda: "head.norm", probe)
        yield _after(layer.norm, lambda: "head.hidden", probe)
    yield _after(head, lambda: "logits", probe)


def _stack_hooks(stack: Stack, name: str, side: str, probe: Probe) -> Iterator[Remove]:
    layer = -1

    def begin(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal layer
        if not probe.paused:
            layer = -1
        return (probe.tap(f"{side}.embedding", args[0]), *args[1:])

    def next_layer(module: nn.Module, args: tuple[Any, ...]) -> None:
        nonlocal layer
        layer += not probe.paused

    yield stack.register_forward_pre_hook(begin).remove
    yield _added_positions(stack, f"{side}.positions", probe)
    yield _before(stack.input_norm, lambda: f"{side}.sum", probe)
    yield from open_norm(stack.input_norm, lambda: f"{side}.norm", probe)
    yield _after(stack.input_norm, lambda: f"{side}.norm", probe)
    yield _after(stack.widen, lambda: f"{side}.input", probe)
    for block in stack.blocks:
        yield block.register_forward_pre_hook(next_layer).remove
        yield from _block_hooks(block, lambda: f"{name}.{layer}", probe)
    if stack.neighbours is not None:
        yield from _convolution_hooks(stack.neighbours, f"{name}.0.convolution", probe)
    yield from open_norm(stack.norm, lambda: f"{name}.norm", probe)
    yield _after(stack, lambda: f"{name}.output", probe)


def _added_positions(stack: Stack, key: str, probe: Probe) -> Remove:
    """Tap what is added to the input; schemes are not called as modules, so their method is."""
    scheme = stack.positions
    before = scheme.add

    def add(x: Tensor, positions: Tensor) -> Tensor:
        if not probe.concerns(key):
            return before(x, positions)
        table = before(torch.zeros_like(x[:1]), positions)[0]
        tapped = probe.tap(key, table)
        return before(x, positions) if tapped is table else x + tapped

    had = "add" in vars(scheme)  # by a pass that this one runs inside of
    vars(scheme)["add"] = add

    def close() -> None:
        if had:
            vars(scheme)["add"] = before
        else:
            del vars(scheme)["add"]

    return close


def _convolution_hooks(neighbours: Neighbours, at: str, probe: Probe) -> Iterator[Remove]:
    yield _after(neighbours.dropout, lambda: f"{at}.inner", probe)
    yield _before(neighbours.norm, lambda: f"{at}.sum", probe)
    yield from open_norm(neighbours.norm, lambda: f"{at}.norm", probe)
    yield _after(neighbours, lambda: f"{at}.residual", probe)


def _block_hooks(block: Any, at: Key, probe: Probe) -> Iterator[Remove]:
    for name in ("self_attention", "cross_attention"):
        attention = getattr(block, name, None)
        if attention is not None:
            under = _under(at, name)
            yield from open_attention(attention, under(""), probe)
            if isinstance(attention.norm, QueryKeyNorm):
                yield from open_norm(attention.norm.query, under(".query_norm"), probe)
                yield from open_norm(attention.norm.key, under(".key_norm"), probe)
            yield _after(attention.output, under(".output"), probe)
            yield from _residual_hooks(getattr(block, f"{name}_residual"), under, probe)
    layer, under = block.feed_forward, _under(at, "feed_forward")
    if isinstance(layer, Experts):
        yield _after(layer.router, under(".shares"), probe)
    else:
        yield _inner(layer, under, probe)
        yield _before(layer.outer, under(".hidden"), probe)
    yield _after(layer, under(".output"), probe)
    yield from _residual_hooks(block.feed_forward_residual, under, probe)


def _under(at: Key, sublayer: str) -> Callable[[str], Key]:
    """Return a function from a part of a sublayer to its key during the pass."""
    return lambda part: lambda: f"{at()}.{sublayer}{part}"


def _residual_hooks(residual: Any, under: Callable[[str], Key], probe: Probe) -> Iterator[Remove]:
    key = under(".skip")

    def skip(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not probe.concerns(key()):
            return None
        x, sublayer = args
        read = kwargs.get("read")
        return (probe.tap(key(), x), sublayer), {"read": x if read is None else read}

    yield residual.register_forward_pre_hook(skip, with_kwargs=True).remove
    if not residual.pre:
        yield _before(residual.norm, under(".sum"), probe)
    yield from open_norm(residual.norm, under(".norm"), probe)
    if residual.pre:
        yield _after(residual.norm, under(".norm"), probe)
    yield from open_norm(residual.output_norm, under(".output_norm"), probe)
    yield _after(residual.output_norm, under(".output_norm"), probe)
    yield _after(residual, under(".residual"), probe)


def _inner(layer: Any, under: Callable[[str], Key], probe: Probe) -> Remove:
    """Tap the products before the activation; those of a gate are the first half."""
    gate_key, inner_key = under(".gate"), under(".inner")

    def tap(module: nn.Module, args: tuple[Any, ...], value: Tensor) -> Tensor:
        if not layer.gated:
            return probe.tap(inner_key(), value)
        if not probe.concerns(gate_key(), inner_key()):
            return value
        gate, inner = value.chunk(2, dim=-1)
        both = probe.tap(gate_key(), gate), probe.tap(inner_key(), inner)
        return torch.cat(both, dim=-1) if probe.changes(gate_key(), inner_key()) else value

    remove: Remove = layer.inner.register_forward_hook(tap).remove
    return remove


def _after(module: nn.Module, key: Key, probe: Probe) -> Remove:
    """Tap a module's output."""
    return module.register_forward_hook(lambda _, args, value: probe.tap(key(), value)).remove


def _before(module: nn.Module, key: Key, probe: Probe) -> Remove:
    """Tap a module's input."""
    return module.register_forward_pre_hook(
        lambda _, args: (probe.tap(key(), args[0]), *args[1:])
    ).remove
