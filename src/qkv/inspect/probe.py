"""One pass of a model with its glass box open: quantities are handed out, or changed on the way.

Nothing of this is in the model. Hooks are there while a pass is probed, and gone after it; an
attention goes through the equation only where somebody asks what is inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from qkv.decode.generate import evaluating
from qkv.inspect.notation import BY_HEAD
from qkv.inspect.reading import Reading
from qkv.model import Attention, Decoder, Encoder, EncoderDecoder, Mask, Model, Stack
from qkv.model.attention import scores, weights

ATTENTIONS = ("self_attention", "cross_attention")


@dataclass(frozen=True)
class Ask:
    """A quantity that somebody wants: all of it, or one head's part."""

    key: str
    head: int | None = None


@dataclass(frozen=True, eq=False)
class Edit:
    """A change on the way: what `change` makes of a quantity is what the rest of the model sees."""

    key: str
    change: Callable[[Tensor], Tensor]


class Enough(Exception):  # noqa: N818 - nothing went wrong
    """All that was asked for has been seen: the rest of the pass need not be computed."""


@dataclass
class Probe:
    """What is wanted of a pass and what is changed in it; `found` holds what was seen."""

    asks: Sequence[Ask]
    edits: Sequence[Edit] = ()
    found: dict[Ask, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.asleep = False
        self._heads: dict[str, set[int | None]] = {}
        for ask in self.asks:
            self._heads.setdefault(ask.key, set()).add(ask.head)
        self._edits: dict[str, list[Edit]] = {}
        for edit in self.edits:
            self._edits.setdefault(edit.key, []).append(edit)

    def tap(self, key: str, value: Tensor) -> Tensor:
        """Let a quantity pass: changed where somebody changes it, kept where somebody asks."""
        if self.asleep:
            return value
        for edit in self._edits.get(key, ()):
            self.asleep = True  # whoever changes may run the model again, for another pass
            try:
                value = edit.change(value)
            finally:
                self.asleep = False
        for head in self._heads.get(key, ()):
            self.keep(Ask(key, head), value if head is None else value[:, head : head + 1])
        return value

    def keep(self, ask: Ask, value: Tensor) -> None:
        """Remember a value, and stop the pass when it was the last."""
        part = value.untyped_storage().nbytes() > value.nbytes  # of something larger
        self.found[ask] = value.clone() if part else value
        if len(self.found) == len(set(self.asks)):
            raise Enough

    def asked_heads(self, key: str) -> set[int | None]:
        """The heads that are asked for of a quantity; None stands for all together."""
        return self._heads.get(key, set())

    def changes(self, key: str) -> bool:
        """Whether a quantity is changed."""
        return key in self._edits


@dataclass
class Place:
    """Where a pass is: which layer of a stack runs now."""

    layer: int = -1


def run(model: Model, reading: Reading, probe: Probe) -> None:
    """One teacher-forced pass, as far as the probe wants it."""
    with opened(model, probe):
        try:
            forward(model, reading)
        except Enough:
            return


def forward(model: Model, reading: Reading) -> Tensor:
    """The model's own pass over a reading."""
    source, target = reading.source, reading.target
    if isinstance(model, EncoderDecoder):
        assert source is not None and target is not None
        return model(source.tokens, target.tokens, source.layout, target.layout)
    if isinstance(model, Decoder):
        assert target is not None
        return model(target.tokens, target.layout)
    assert source is not None
    return model(source.tokens, source.layout, reading.segments)


@contextmanager
def opened(model: Model, probe: Probe) -> Iterator[None]:
    """Hang a probe's hooks into a model; dropout is off, and all is as before afterwards."""
    with evaluating(model), ExitStack() as stack:
        for take_off in _hooks(model, probe):
            stack.callback(take_off)
        yield


def _hooks(model: Model, probe: Probe) -> Iterator[Callable[[], None]]:
    """Hang in every hook; each is given back as the call that takes it off."""
    if isinstance(model, Encoder | EncoderDecoder):
        yield from _stack_hooks(model.encoder, "encoder", "source", probe)
    if isinstance(model, Decoder | EncoderDecoder):
        yield from _stack_hooks(model.decoder, "decoder", "target", probe)
        yield _after(model.output, lambda: "logits", probe)
    if isinstance(model, Encoder):
        yield _after(model.pooler, lambda: "pooled", probe)
        yield _after(model.head, lambda: "logits", probe)


def _stack_hooks(stack: Stack, name: str, side: str, probe: Probe) -> Iterator[Callable[[], None]]:
    place = Place()

    def begin(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if not probe.asleep:
            place.layer = -1
        return (probe.tap(f"{side}.embedding", args[0]), *args[1:])

    def next_layer(module: nn.Module, args: tuple[Any, ...]) -> None:
        place.layer += not probe.asleep

    yield stack.register_forward_pre_hook(begin).remove
    yield _after(stack.widen, lambda: f"{side}.input", probe)
    for block in stack.blocks:
        yield block.register_forward_pre_hook(next_layer).remove
        yield from _block_hooks(block, lambda: f"{name}.{place.layer}", probe)
    if stack.neighbours is not None:
        yield _after(stack.neighbours, lambda: f"{name}.0.convolution.residual", probe)
    yield _after(stack, lambda: f"{name}.output", probe)


def _block_hooks(
    block: nn.Module, at: Callable[[], str], probe: Probe
) -> Iterator[Callable[[], None]]:
    for name in ATTENTIONS:
        attention = getattr(block, name, None)
        if attention is None:
            continue
        yield _open_attention(attention, _under(at, name), probe)
        yield _after(attention.output, _under(at, f"{name}.output"), probe)
        residual = getattr(block, f"{name}_residual")
        yield _after(residual, _under(at, f"{name}.residual"), probe)
    feed_forward: Any = block.feed_forward
    yield _before(feed_forward.outer, _under(at, "feed_forward.hidden"), probe)
    yield _after(feed_forward.outer, _under(at, "feed_forward.output"), probe)
    residual = block.feed_forward_residual
    assert isinstance(residual, nn.Module)
    yield _after(residual, _under(at, "feed_forward.residual"), probe)


def _under(at: Callable[[], str], name: str) -> Callable[[], str]:
    return lambda: f"{at()}.{name}"


def _after(module: nn.Module, key: Callable[[], str], probe: Probe) -> Callable[[], None]:
    """Tap what a module gives."""
    return module.register_forward_hook(lambda _, args, value: probe.tap(key(), value)).remove


def _before(module: nn.Module, key: Callable[[], str], probe: Probe) -> Callable[[], None]:
    """Tap what a module is given."""
    return module.register_forward_pre_hook(
        lambda _, args: (probe.tap(key(), args[0]), *args[1:])
    ).remove


def _open_attention(
    attention: Attention, at: Callable[[], str], probe: Probe
) -> Callable[[], None]:
    """Put a tap on every quantity of one attention; the call given back takes it off."""
    before = attention.attend

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        scale: float,
        bias: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        if probe.asleep:
            return before(query, key, value, mask, scale, bias, dropout)
        name = at()
        query, key, value = (
            probe.tap(f"{name}.{part}", x)
            for part, x in zip(BY_HEAD, (query, key, value), strict=False)
        )
        looked = _look_inside(query, key, mask, scale, bias, name, probe)
        if looked is None:
            heads = before(query, key, value, mask, scale, bias, dropout)
        else:
            heads = looked @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        return probe.tap(f"{name}.heads", heads)

    attention.attend = attend

    def close() -> None:
        attention.attend = before

    return close


def _look_inside(
    query: Tensor,
    key: Tensor,
    mask: Mask,
    scale: float,
    bias: Tensor | None,
    name: str,
    probe: Probe,
) -> Tensor | None:
    """Scores and weights by the equation, of the heads that are asked for.

    Gives the weights where they are changed, for the rest of the pass to use. Else that goes on as
    it was, so that no number depends on what else is asked for.
    """
    inside = [f"{name}.scores", f"{name}.weights"]
    heads = set.union(*(probe.asked_heads(one) for one in inside))
    changed = any(probe.changes(one) for one in inside)
    if None in heads or changed:
        spread = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        found = probe.tap(inside[0], scores(query, spread, mask, scale, bias))
        found = probe.tap(inside[1], weights(found))
        return found if changed else None
    for head in sorted(head for head in heads if head is not None):
        group = head * key.shape[1] // query.shape[1]
        own = bias if bias is None or bias.shape[1] == 1 else bias[:, head : head + 1]
        alone = query[:, head : head + 1], key[:, group : group + 1]
        found = scores(*alone, mask, scale, own)
        if head in probe.asked_heads(inside[0]):
            probe.keep(Ask(inside[0], head), found)
        if head in probe.asked_heads(inside[1]):
            probe.keep(Ask(inside[1], head), weights(found))
    return None
