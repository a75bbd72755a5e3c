"""Attention: softmax(QKᵀ/√d_k + M)·V, as the equation and as fused kernels (paper, section 3.2).

Shapes: B batch, T queries, S keys, D d_model, H heads, G key/value heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model import packed_attention, row_attention, stacked_attention
from qkv.model.cache import LayerCache
from qkv.model.dropout import dropout as drop
from qkv.model.mask import Mask
from qkv.model.norm import QueryKeyNorm
from qkv.model.positions import Order
from qkv.model.projections import PositionProjections, QueryValueBias
from qkv.model.soft_cap import soft_cap


class KeysValues(NamedTuple):
    """Keys and values that queries attend to, each (B, G, S, D/H)."""

    key: Tensor
    value: Tensor


class Attend(Protocol):
    """The signature that both paths share."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        scale: float,
        bias: Tensor | None = None,
        dropout: float = 0.0,
        cap: float = 0.0,
    ) -> Tensor:
        """Attend to the keys and return the weighted values, (B, H, T, D/H)."""


def scores(
    query: Tensor,
    key: Tensor,
    mask: Mask,
    scale: float,
    bias: Tensor | None = None,
    cap: float = 0.0,
) -> Tensor:
    """QKᵀ/√d_k + M, (B, H, T, S); some models cap the products, or add a bias by position."""
    raw = soft_cap(query @ key.transpose(-2, -1) * scale, cap)
    raw = raw if bias is None else raw + bias
    return raw + mask.additive(query.shape[-2], key.shape[-2], query.device, raw.dtype)


def weights(scores: Tensor) -> Tensor:
    """softmax over the keys; a query that may see none gets zeros, not NaN."""
    blind = scores.isneginf().all(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(blind, 0.0), dim=-1).masked_fill(blind, 0.0)


def equation(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    scale: float,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    cap: float = 0.0,
) -> Tensor:
    """softmax(QKᵀ/√d_k + M)·V, written out, (B, H, T, D/H)."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    return drop(weights(scores(query, key, mask, scale, bias, cap)), dropout) @ value


def fast(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    scale: float,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    cap: float = 0.0,
) -> Tensor:
    """softmax(QKᵀ/√d_k + M)·V by fused kernels, which the mask chooses, (B, H, T, D/H)."""
    if cap:  # which no fused kernel of torch has
        return equation(query, key, value, mask, scale, bias, dropout, cap)
    if query.is_cuda and bias is None and dropout == 0.0:
        lengths = mask.key_lengths if mask.only_lengths else None
        if lengths is not None and row_attention.serves(query):
            return row_attention.attend(query, key, value, lengths, scale)
        if packed_attention.serves(query, mask):
            return packed_attention.attend(query, key, value, mask, scale)
    if query.dtype == torch.bfloat16 and not query.is_cuda:
        if stacked_attention.serves(query, key):
            return stacked_attention.attend(query, key, value, mask, scale, bias, dropout)
        # torch's kernel for a CPU computes in float32, and backwards is slow in another type.
        query, key, value = query.float(), key.float(), value.float()
        with torch.autocast(query.device.type, enabled=False):
            return fast(query, key, value, mask, scale, bias, dropout).bfloat16()
    drawn = None
    if not (mask.hides_nothing or mask.only_causal):
        drawn = mask.boolean(query.shape[-2], key.shape[-2], query.device)
    if bias is not None:
        visible = mask.additive(query.shape[-2], key.shape[-2], query.device, bias.dtype)
        heads = _fused(query, key, value, (bias + visible).to(query.dtype), scale, dropout)
    elif mask.only_causal:
        heads = _fused(query, key, value, None, scale, dropout, causal=True)
    else:
        heads = _grouped(query, key, value, drawn, scale, dropout)
    if drawn is None or not mask.may_be_blind:
        return heads
    return heads.masked_fill(~drawn.any(dim=-1, keepdim=True), 0.0)  # some kernels leave garbage


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    added: Tensor | None,
    scale: float,
    dropout: float,
    causal: bool = False,
) -> Tensor:
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=added,
        dropout_p=dropout,
        scale=scale,
        is_causal=causal,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _grouped(
    query: Tensor, key: Tensor, value: Tensor, drawn: Tensor | None, scale: float, dropout: float
) -> Tensor:
    """Fold the queries that share a key/value head into one row: fast kernels take no groups."""
    n_groups = key.shape[1]
    if query.shape[1] == n_groups:
        return _fused(query, key, value, drawn, scale, dropout)
    together = query.unflatten(1, (n_groups, -1)).flatten(2, 3)  # (B, G, H/G·T, D/H)
    if drawn is not None and drawn.shape[-2] > 1:
        drawn = drawn.repeat(1, 1, query.shape[1] // n_groups, 1)
    heads = _fused(together, key, value, drawn, scale, dropout)
    return heads.unflatten(2, (-1, query.shape[2])).flatten(1, 2)


class Attention(nn.Module):
    """Multi-head attention (section 3.2.2); key/value heads may be shared among query heads.

    Self-attention projects q, k and v with one matrix. Cross-attention projects q from the decoder,
    and k and v from the encoder's output, once for each source (`remember`).
    """

    def __init__(self, config: ModelConfig, cross: bool = False) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = config.n_heads, config.kv_heads
        self.d_head = config.d_head
        self.scale, self.cap = config.score_scale, config.score_cap
        self.dropout = config.attention_dropout
        self.attend: Attend = fast
        d_model, d_heads, d_kv = (
            config.d_model,
            config.n_heads * config.d_head,
            config.kv_heads * config.d_head,
        )
        if cross:
            self.query = nn.Linear(d_model, d_heads, bias=config.has_qkv_bias)
            self.key_value = nn.Linear(d_model, 2 * d_kv, bias=config.has_qkv_bias)
        else:
            bias, own_biases = config.has_qkv_bias, not config.key_bias
            width = d_heads + 2 * d_kv
            self.query_key_value = nn.Linear(d_model, width, bias=bias and not own_biases)
            self.bias = QueryValueBias(config) if bias and own_biases else None
            own = config.position_projections
            self.position_projections = PositionProjections(config) if own else None
        self.norm = QueryKeyNorm(config) if config.query_key_norm else None
        self.output = nn.Linear(d_heads, d_model, bias=config.bias)

    def forward(
        self, x: Tensor, mask: Mask, order: Order, cache: LayerCache | None = None
    ) -> Tensor:
        """Self-attention: x attends to itself and to the KV cache."""
        n_heads, n_kv_heads = self.n_heads, self.n_kv_heads
        projected = self.query_key_value(x)
        projected = projected if self.bias is None else self.bias(projected)
        heads = self._split(projected, n_heads + 2 * n_kv_heads)
        plain, value = heads.split([n_heads + n_kv_heads, n_kv_heads], dim=1)
        plain = plain if self.norm is None else self.norm(plain)
        if cache is not None and self._has_row_kernel(plain, order, cache):
            return self._join_heads(cache.attend(plain, value, mask, self.scale, order.angles))
        query, key = order.turn(plain).split([n_heads, n_kv_heads], dim=1)
        if cache is not None:
            key, value = cache.extend(key, value)
        bias = order.bias(query, key, self.project)
        return self._combine(query, key, value, mask, None if bias is None else bias * self.scale)

    def project(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Project vectors of distances to queries and keys, (R, D) to (H, R, D/H) twice."""
        fused, size = self.query_key_value, (self.n_heads + self.n_kv_heads) * self.d_head
        if self.position_projections is not None:
            both = self.position_projections(vectors)
        else:
            bias = None if fused.bias is None else fused.bias[:size]
            both = F.linear(vectors, fused.weight[:size], bias)
        query, key = self._split(both[None], self.n_heads + self.n_kv_heads)[0].split(
            [self.n_heads, self.n_kv_heads]
        )
        return query, key

    def remember(self, memory: Tensor) -> KeysValues:
        """Project the encoder's output to K and V, once for all target tokens."""
        heads = self._split(self.key_value(memory), 2 * self.n_kv_heads)
        return KeysValues(*heads.chunk(2, dim=1))

    def look(self, x: Tensor, memory: KeysValues, mask: Mask) -> Tensor:
        """Cross-attention: x attends to K and V of the source.

        Several rows of x may share one source (the beams of a sentence): they become queries of one
        row, so that its keys and values need not be copied for each.
        """
        rows, length, d_model = x.shape
        x = x.reshape(memory.key.shape[0], -1, d_model)  # (B, beams·T, D)
        query = self._split(self.query(x), self.n_heads)
        heads = self._combine(query, memory.key, memory.value, mask, None)
        return heads.reshape(rows, length, d_model)

    def _split(self, x: Tensor, n_heads: int) -> Tensor:
        rows, length, _ = x.shape
        return x.view(rows, length, n_heads, self.d_head).transpose(1, 2)  # (B, H, T, D/H)

    def _combine(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, bias: Tensor | None
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        cap = {"cap": self.cap} if self.cap else {}  # which a path of one's own need not know
        heads = self.attend(query, key, value, mask, self.scale, bias, dropout, **cap)
        return self._join_heads(heads)

    def _join_heads(self, heads: Tensor) -> Tensor:
        return self.output(heads.transpose(1, 2).flatten(2))

    def _has_row_kernel(self, query: Tensor, order: Order, cache: LayerCache) -> bool:
        """Whether one kernel may extend the cache and attend to it."""
        plain = self.attend is fast and order.distances is None and not self.cap
        return plain and cache.has_rows and row_attention.serves(query)


@contextmanager
def use_path(model: nn.Module, path: Attend) -> Iterator[None]:
    """Run all attentions of a model on `equation` or `fast` inside the block."""
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    before = [attention.attend for attention in attentions]
    for attention in attentions:
        attention.attend = path
    try:
        yield
    finally:
        for attention, attend in zip(attentions, before, strict=True):
            attention.attend = attend
