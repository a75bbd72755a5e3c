"""One pass of a model with hooks that hand out quantities or change them.

The model knows nothing of this. Hooks are attached while a pass is probed and removed after it; an
attention is computed by the equation only where its scores or weights are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from qkv.inspect.trace.edit import Edit
from qkv.inspect.trace.inputs import Inputs
from qkv.model import Attention, Decoder, Encoder, EncoderDecoder, Mask, Model, Stack, evaluating
from qkv.model.attention import scores, weights
from qkv.model.experts import Experts

Key = Callable[[], str]  # asked during the pass: layers with shared weights have several keys
Remove = Callable[[], None]


@dataclass(frozen=True)
class Ask:
    """A wanted quantity: all of it, or one head."""

    key: str
    head: int | None = None


class AllSeen(Exception):  # noqa: N818 - nothing went wrong
    """Stops a pass when every wanted quantity has been seen."""


@dataclass
class Probe:
    """Quantities wanted of a pass and changes to it; `values` holds what was seen."""

    asks: Sequence[Ask]
    edits: Sequence[Edit] = ()
    values: dict[Ask, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.paused = False
        self._heads: dict[str, set[int | None]] = {}
        for ask in self.asks:
            self._heads.setdefault(ask.key, set()).add(ask.head)
        self._edits: dict[str, list[Edit]] = {}
        for edit in self.edits:
            self._edits.setdefault(edit.key, []).append(edit)

    def tap(self, key: str, value: Tensor) -> Tensor:
        """Change a quantity where an edit says so, keep it where it is asked for, return it."""
        if self.paused:
            return value
        for edit in self._edits.get(key, ()):
            self.paused = True  # the edit may itself run the model
            try:
                value = edit.change(value)
            finally:
                self.paused = False
        for head in self._heads.get(key, ()):
            self.keep(Ask(key, head), value if head is None else value[:, head : head + 1])
        return value

    def keep(self, ask: Ask, value: Tensor) -> None:
        """Store a value, and stop the pass if it was the last one wanted."""
        is_view = value.untyped_storage().nbytes() > value.nbytes
        self.values[ask] = value.clone() if is_view else value
        if len(self.values) == len(set(self.asks)):
            raise AllSeen

    def heads(self, key: str) -> set[int | None]:
        """Heads that are asked for of a quantity; None stands for all together."""
        return self._heads.get(key, set())

    def changes(self, key: str) -> bool:
        """Whether a quantity is changed."""
        return key in self._edits


def run(model: Model, inputs: Inputs, probe: Probe) -> None:
    """Run one teacher-forced pass with dropout off, as far as the probe needs it."""
    with evaluating(model), ExitStack() as stack:
        for remove in _hooks(model, probe):
            stack.callback(remove)
        try:
            forward(model, inputs)
        except AllSeen:
            return


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


def _hooks(model: Model, probe: Probe) -> Iterator[Remove]:
    """Attach every hook; each yields the call that removes it."""
    if isinstance(model, Encoder | EncoderDecoder):
        yield from _stack_hooks(model.encoder, "encoder", "source", probe)
    if isinstance(model, Decoder | EncoderDecoder):
        yield from _stack_hooks(model.decoder, "decoder", "target", probe)
        yield _after(model.output, lambda: "logits", probe)
    if isinstance(model, Encoder):
        yield _after(model.pooler, lambda: "pooled", probe)
        yield _after(model.head, lambda: "logits", probe)


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
    yield _after(stack.widen, lambda: f"{side}.input", probe)
    for block in stack.blocks:
        yield block.register_forward_pre_hook(next_layer).remove
        yield from _block_hooks(block, lambda: f"{name}.{layer}", probe)
    if stack.neighbours is not None:
        yield _after(stack.neighbours, lambda: f"{name}.0.convolution.residual", probe)
    yield _after(stack, lambda: f"{name}.output", probe)


def _block_hooks(block: Any, at: Key, probe: Probe) -> Iterator[Remove]:
    def under(name: str) -> Key:
        return lambda: f"{at()}.{name}"

    for name in ("self_attention", "cross_attention"):
        attention = getattr(block, name, None)
        if attention is not None:
            yield _open_attention(attention, under(name), probe)
            yield _after(attention.output, under(f"{name}.output"), probe)
            yield _after(getattr(block, f"{name}_residual"), under(f"{name}.residual"), probe)
    layer = block.feed_forward
    if isinstance(layer, Experts):
        yield _after(layer.router, under("feed_forward.shares"), probe)
    else:
        yield _before(layer.outer, under("feed_forward.hidden"), probe)
    yield _after(layer, under("feed_forward.output"), probe)
    yield _after(block.feed_forward_residual, under("feed_forward.residual"), probe)


def _after(module: nn.Module, key: Key, probe: Probe) -> Remove:
    """Tap a module's output."""
    return module.register_forward_hook(lambda _, args, value: probe.tap(key(), value)).remove


def _before(module: nn.Module, key: Key, probe: Probe) -> Remove:
    """Tap a module's input."""
    return module.register_forward_pre_hook(
        lambda _, args: (probe.tap(key(), args[0]), *args[1:])
    ).remove


def _open_attention(attention: Attention, at: Key, probe: Probe) -> Remove:
    """Tap every quantity inside one attention."""
    before = attention.attend

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        scale: float,
        bias: Tensor | None = None,
        dropout: float = 0.0,
        cap: float = 0.0,
    ) -> Tensor:
        if probe.paused:
            return before(query, key, value, mask, scale, bias, dropout, cap)
        name = at()
        query = probe.tap(f"{name}.query", query)
        key = probe.tap(f"{name}.key", key)
        value = probe.tap(f"{name}.value", value)
        changed = _tap_weights(query, key, mask, scale, bias, cap, name, probe)
        if changed is None:
            heads = before(query, key, value, mask, scale, bias, dropout, cap)
        else:
            heads = changed @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        return probe.tap(f"{name}.heads", heads)

    attention.attend = attend

    def close() -> None:
        attention.attend = before

    return close


def _tap_weights(
    query: Tensor,
    key: Tensor,
    mask: Mask,
    scale: float,
    bias: Tensor | None,
    cap: float,
    name: str,
    probe: Probe,
) -> Tensor | None:
    """Compute scores and weights by the equation, of the wanted heads alone.

    Returns the weights if they are changed, for the rest of the pass to use. Otherwise the pass
    continues on its own path, so that no number depends on what else is asked for.
    """
    scores_key, weights_key = f"{name}.scores", f"{name}.weights"
    heads = probe.heads(scores_key) | probe.heads(weights_key)
    changed = probe.changes(scores_key) or probe.changes(weights_key)
    if None in heads or changed:
        spread = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        fit = probe.tap(scores_key, scores(query, spread, mask, scale, bias, cap))
        mixed = probe.tap(weights_key, weights(fit))
        return mixed if changed else None
    for head in sorted(head for head in heads if head is not None):
        group = head * key.shape[1] // query.shape[1]
        own_bias = bias if bias is None or bias.shape[1] == 1 else bias[:, head : head + 1]
        own_query, own_key = query[:, head : head + 1], key[:, group : group + 1]
        fit = scores(own_query, own_key, mask, scale, own_bias, cap)
        if head in probe.heads(scores_key):
            probe.keep(Ask(scores_key, head), fit)
        if head in probe.heads(weights_key):
            probe.keep(Ask(weights_key, head), weights(fit))
    return None
