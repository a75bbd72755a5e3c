"""Projections that some models have beside the fused one of queries, keys and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig


class QueryValueBias(nn.Module):
    """Biases of queries and values, where keys have none (DeBERTa)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(config.n_heads * config.d_head))
        self.value = nn.Parameter(torch.zeros(config.kv_heads * config.d_head))

    def forward(self, projected: Tensor) -> Tensor:
        """Add them to queries, keys and values that stand side by side, (B, T, …)."""
        return projected + torch.cat([self.query, torch.zeros_like(self.value), self.value])


class PositionProjections(nn.Module):
    """Matrices that project the vectors of distances, and nothing else (DeBERTa)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.query = nn.Linear(config.d_model, config.n_heads * config.d_head)
        self.key = nn.Linear(config.d_model, config.kv_heads * config.d_head, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """(R, D) to queries and keys side by side, (R, …)."""
        return torch.cat([self.query(vectors), self.key(vectors)], dim=-1)
