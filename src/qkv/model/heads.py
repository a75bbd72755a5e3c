"""Encoder heads: pooling, masked-LM, labels."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model.dropout import Dropout
from qkv.model.feed_forward import ACTIVATIONS
from qkv.model.mask import Layout, segments
from qkv.model.norm import build_norm
from qkv.model.soft_cap import soft_cap


def _unchanged(vector: Tensor) -> Tensor:
    return vector


POOLER_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": _unchanged,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "relu": F.relu,
}


def pool(x: Tensor, layout: Layout, how: str) -> Tensor:
    """Pool each sequence to one vector, (B, T, D) to (M, D).

    `how`: the first or last token, the mean, the maximum of each dimension, or a mean in which the
    n-th token weighs n. The vector of an empty sequence has no meaning.
    """
    if how == "first":
        if layout.offsets is None:
            return x[:, 0]
        return x[0, layout.offsets[:-1].long().clamp(max=x.shape[1] - 1)]
    if how == "last":
        if layout.offsets is not None:
            return x[0, layout.offsets[1:].long() - 1]
        if layout.lengths is None:
            return x[:, -1]
        return x[torch.arange(len(x), device=x.device), layout.lengths - 1]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # bfloat16 is too coarse for long sums
    if how == "max":
        return _maxima(wide, layout).to(x.dtype)
    weights = torch.ones(x.shape[:2], device=x.device, dtype=wide.dtype)  # (B, T)
    if how == "weighted":
        weights = weights * (layout.positions(x.shape[1], x.device) + 1)
    if layout.lengths is not None:
        weights = weights * (torch.arange(x.shape[1], device=x.device) < layout.lengths[:, None])
    return _weighted_mean(wide, weights, layout).to(x.dtype)


def _weighted_mean(x: Tensor, weights: Tensor, layout: Layout) -> Tensor:
    if layout.offsets is None:
        total, size = (x * weights[:, :, None]).sum(dim=1), weights.sum(dim=1)
    else:
        owner = segments(layout.offsets, x.shape[1])
        count = len(layout.offsets) - 1
        size = x.new_zeros(count).index_add(0, owner, weights[0])
        total = x.new_zeros(count, x.shape[2]).index_add(0, owner, x[0] * weights[0][:, None])
    return total / size.clamp(min=1)[:, None]


def _maxima(x: Tensor, layout: Layout) -> Tensor:
    if layout.offsets is not None:
        owner = segments(layout.offsets, x.shape[1])[:, None].expand_as(x[0])
        lowest = x.new_full((len(layout.offsets) - 1, x.shape[2]), float("-inf"))
        found = lowest.scatter_reduce(0, owner, x[0], "amax")
        return found.masked_fill(found.isneginf(), 0.0)
    if layout.lengths is not None:
        padding = torch.arange(x.shape[1], device=x.device) >= layout.lengths[:, None]
        x = x.masked_fill(padding[:, :, None], float("-inf"))
    found = x.amax(dim=1)
    return found.masked_fill(found.isneginf(), 0.0)


class Pooler(nn.Module):
    """Pools a text to one vector, with a dense layer if the config has one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.how = config.pooling
        self.activation = POOLER_ACTIVATIONS[config.pooler]
        self.dense = (
            nn.Identity() if config.pooler == "none" else nn.Linear(config.d_model, config.d_model)
        )

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """(B, T, D) to (M, D)."""
        return self.activation(self.dense(pool(x, layout, self.how)))


class VectorProjection(nn.Module):
    """Projects a text's vector to another width (sentence-transformers' Dense)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_vector)
        self.activation = POOLER_ACTIVATIONS[config.vector_activation]

    def forward(self, vector: Tensor) -> Tensor:
        """(M, D) to (M, d_vector)."""
        return self.activation(self.dense(vector))


class HeadLayer(nn.Module):
    """norm(act(x·W + b)), which a head may have before its output matrix."""

    def __init__(self, config: ModelConfig, width: int = 0) -> None:
        super().__init__()
        width = width or config.d_model
        self.dense = nn.Linear(config.d_model, width, bias=config.head_bias)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = build_norm(config, width)

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) to (…, E)."""
        return self.norm(self.activation(self.dense(x)))


class MaskedHead(HeadLayer):
    """Masked-LM head: a layer and a norm, then the embedding as output matrix."""

    def __init__(self, config: ModelConfig, table: nn.Embedding) -> None:
        super().__init__(config, config.embedding_width)
        self.projection = nn.Linear(config.embedding_width, config.vocab_size)
        self.cap = config.logit_cap
        if config.tie != "none":
            self.projection.weight = table.weight

    def hidden(self, x: Tensor) -> Tensor:
        """Compute the vectors that the embedding projects, (…, E)."""
        return super().forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) to (…, V)."""
        return soft_cap(self.projection(self.hidden(x)), self.cap)


class LabelHead(nn.Module):
    """Vectors to logits of labels."""

    def __init__(self, config: ModelConfig, n_labels: int) -> None:
        super().__init__()
        self.layer = HeadLayer(config) if config.head_layer else nn.Identity()
        self.dropout = Dropout(config.dropout)
        # GPT's W_y has no bias (Radford et al. 2018, equation 3).
        self.projection = nn.Linear(config.d_model, n_labels, bias=not config.causal)

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) to (…, C)."""
        return self.projection(self.dropout(self.layer(x)))
