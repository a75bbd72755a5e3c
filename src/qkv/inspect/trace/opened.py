"""Attentions and norms opened up: the steps inside of their formulas, one tap each.

A formula is computed only where a step of it is asked for, and of the wanted heads alone. Where a
step is changed, the pass continues with the formula's numbers; otherwise on its own path, so that
no number depends on what else is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.inspect.trace.taps import Ask, Probe
from qkv.model import Attention, Mask, Order
from qkv.model.attention import weights
from qkv.model.norm import RMSNormPlusOne
from qkv.model.positions import Angles, Disentangled
from qkv.model.soft_cap import soft_cap

Key = Callable[[], str]  # asked during the pass: layers with shared weights have several keys
Remove = Callable[[], None]
Tap = Callable[[str, Tensor], Tensor]
BY_HEAD = ("products", "bias", "scores", "weights")
STEPS = (*BY_HEAD, "scale", "mask")


def gain_of(norm: Any) -> Tensor:
    """What a norm multiplies each dimension with."""
    weight: Tensor = norm.weight
    return weight + 1.0 if isinstance(norm, RMSNormPlusOne) else weight


def open_norm(norm: nn.Module, at: Key, probe: Probe) -> Iterator[Remove]:
    """Tap mean, deviation and normalised vectors of a norm: x̂ = (x − μ)/σ, then x̂·γ + β."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm | RMSNormPlusOne):
        return
    layer: Any = norm
    epsilon = layer.epsilon if isinstance(norm, RMSNormPlusOne) else layer.eps

    def normalise(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        steps = [f"{at()}.{step}" for step in ("mean", "deviation", "normalised")]
        if not probe.concerns(*steps):
            return output
        x = args[0].to(torch.promote_types(args[0].dtype, torch.float32))
        if isinstance(norm, nn.LayerNorm):
            x = x - probe.tap(steps[0], x.mean(dim=-1, keepdim=True))
        square = x.square().mean(dim=-1, keepdim=True)
        deviation = probe.tap(steps[1], (square + epsilon).sqrt())
        x = probe.tap(steps[2], x / deviation)
        if not probe.changes(*steps):
            return output
        x = x * gain_of(norm)
        bias = getattr(norm, "bias", None)
        return (x if bias is None else x + bias).to(output.dtype)

    yield norm.register_forward_hook(normalise).remove


@dataclass
class Scores:
    """What the scores of an attention are made of."""

    query: Tensor
    key: Tensor  # (B, G, S, D/H)
    mask: Mask
    scale: float
    bias: Tensor | None
    cap: float
    scaled_bias: bool  # whether the scale divides the bias too

    def of_head(self, head: int) -> Scores:
        """Select the tensors of one head."""
        group = head * self.key.shape[1] // self.query.shape[1]
        bias = self.bias
        bias = bias if bias is None or bias.shape[1] == 1 else bias[:, head : head + 1]
        query, key = self.query[:, head : head + 1], self.key[:, group : group + 1]
        return dataclasses.replace(self, query=query, key=key, bias=bias)

    def additive_mask(self) -> Tensor:
        """M, (B or 1, 1, T, S)."""
        n_queries, n_keys = self.query.shape[-2], self.key.shape[-2]
        drawn = self.mask.additive(n_queries, n_keys, self.query.device, self.query.dtype)
        return drawn.expand(-1, 1, n_queries, n_keys)

    def root(self) -> Tensor:
        """√d_k as a tensor of its own."""
        return torch.tensor(1 / self.scale, dtype=self.query.dtype, device=self.query.device)

    def weigh(self, tap: Tap) -> Tensor:
        """softmax(QKᵀ/√d_k + bias + M), step by step."""
        key = self.key.repeat_interleave(self.query.shape[1] // self.key.shape[1], dim=1)
        products = tap("products", self.query @ key.transpose(-2, -1))
        plain = self.root()
        root = tap("scale", plain)
        # The model multiplies by 1/√d_k: so do we, to the same bits, where that is not changed.
        raw = soft_cap(products * self.scale if root is plain else products / root, self.cap)
        if self.bias is not None:
            bias = self.bias
            if root is not plain and self.scaled_bias:
                bias = bias * (plain / root)
            raw = raw + tap("bias", bias)
        return tap("weights", weights(tap("scores", raw + tap("mask", self.additive_mask()))))


def open_attention(attention: Attention, at: Key, probe: Probe) -> Iterator[Remove]:
    """Tap every quantity inside one attention."""
    before, orders = attention.attend, list[Order]()

    def begin(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if probe.paused:
            return None
        x, mask, order, *rest = args
        order = _turned(order, f"{at()}.rotation", probe)
        orders[:] = [order]
        return x, mask, order, *rest

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
        old = query, key
        query, key = probe.tap(f"{name}.query", query), probe.tap(f"{name}.key", key)
        value = probe.tap(f"{name}.value", value)
        disentangled = bool(orders) and isinstance(orders[0].scheme, Disentangled)
        if disentangled and (query is not old[0] or key is not old[1]):
            made = orders[0].bias(query, key, attention.project)  # of queries and keys too
            bias = None if made is None else made * scale
        scores = Scores(query, key, mask, scale, bias, cap, disentangled)
        changed = _tap_weights(scores, name, probe)
        if changed is None:
            heads = before(query, key, value, mask, scale, bias, dropout, cap)
        else:
            heads = changed @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        return probe.tap(f"{name}.heads", heads)

    yield attention.register_forward_pre_hook(begin).remove
    attention.attend = attend

    def close() -> None:
        attention.attend = before

    yield close


def _turned(order: Order, key: str, probe: Probe) -> Order:
    """Tap the angles by which rotary positions turn; turn by others where they are changed."""
    if order.angles is None or not probe.concerns(key):
        return order
    half = order.angles.cosine.shape[-1] // 2
    cosine, sine = (table[..., half:] for table in order.angles)
    angle = torch.atan2(sine, cosine)
    tapped = probe.tap(key, angle)
    if tapped is angle:
        return order
    loudness = order.scheme.cosine[0, 0]  # type: ignore[index]  # YaRN's, as cos 0 is 1
    new_cosine, new_sine = tapped.cos() * loudness, tapped.sin() * loudness
    if torch.equal(tapped, angle):  # only differentiated by: the table's values, unrounded
        new_cosine = cosine + (new_cosine - new_cosine.detach())
        new_sine = sine + (new_sine - new_sine.detach())
    cosine, sine = new_cosine, new_sine
    angles = Angles(torch.cat([cosine, cosine], dim=-1), torch.cat([-sine, sine], dim=-1))
    return dataclasses.replace(order, angles=angles)


def _tap_weights(scores: Scores, name: str, probe: Probe) -> Tensor | None:
    """Compute the steps up to the weights that are asked for; return the weights if changed."""

    def tap(step: str, value: Tensor) -> Tensor:
        return probe.tap(f"{name}.{step}", value)

    changed = probe.changes(*(f"{name}.{step}" for step in STEPS))
    heads = set[int | None]().union(*(probe.heads(f"{name}.{step}") for step in BY_HEAD))
    if changed or None in heads:
        mixed = scores.weigh(tap)
        return mixed if changed else None
    if probe.concerns(f"{name}.scale"):
        tap("scale", scores.root())
    if probe.concerns(f"{name}.mask"):
        tap("mask", scores.additive_mask())
    for head in sorted(head for head in heads if head is not None):

        def keep(step: str, value: Tensor, head: int = head) -> Tensor:
            if head in probe.heads(f"{name}.{step}"):
                probe.keep(Ask(f"{name}.{step}", head), value)
            return value

        scores.of_head(head).weigh(keep)
    return None
