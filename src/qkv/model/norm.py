"""Normalisation of each token's vector over its last dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.config import ModelConfig


def build_norm(config: ModelConfig, width: int = 0) -> nn.Module:
    """LayerNorm: (x - mean) / std · g + b; RMSNorm: x / rms(x) · g."""
    width, epsilon = width or config.d_model, config.norm_epsilon
    if config.norm == "layer":
        return nn.LayerNorm(width, eps=epsilon, bias=config.norm_bias)
    return (
        nn.RMSNorm(width, eps=epsilon) if config.norm == "rms" else RMSNormPlusOne(width, epsilon)
    )


class RMSNormPlusOne(nn.Module):
    """x / rms(x) · (1 + g), multiplied in float32 at least, as Gemma has it."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        exact = torch.promote_types(x.dtype, torch.float32)
        gain = 1 + self.weight.to(exact)
        return F.rms_norm(x.to(exact), gain.shape, gain, self.epsilon).to(x.dtype)


class QueryKeyNorm(nn.Module):
    """Norms of each head's queries and keys, which keep scores from growing (Henry et al. 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.query, self.key = (build_norm(config, config.d_head) for _ in range(2))

    def forward(self, query_key: Tensor) -> Tensor:
        """Normalise queries and keys in one tensor, (B, H + G, T, D/H)."""
        query, key = query_key.tensor_split([self.n_heads], dim=1)
        return torch.cat([self.query(query), self.key(key)], dim=1)
