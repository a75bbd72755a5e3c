"""ALiBi (Press et al. 2022): scores fall with distance, at a rate of its own for each head."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.model.positions.base import Distances, Positions, Project


class Alibi(Positions):
    """Subtracts slope · distance from each score; it has no weights, and any length is in reach."""

    slopes: Tensor  # (H, 1, 1), before scores are divided by √d_k

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        slopes = head_slopes(config.n_heads)[:, None, None] / config.score_scale
        self.register_buffer("slopes", slopes, persistent=False)

    def distances(self, positions: Tensor, key_positions: Tensor) -> Distances:
        """Compute -slope · |query position - key position| for each head."""
        apart = (positions[..., :, None] - key_positions[..., None, :]).abs()
        apart = apart if apart.dim() == 3 else apart[None]  # (B or 1, T, S)
        exact = torch.promote_types(self.slopes.dtype, torch.float32)
        added = -self.slopes.to(exact) * apart[:, None]
        return Distances(apart, added.to(self.slopes.dtype))

    def bias(
        self, query: Tensor, key: Tensor, project: Project, distances: Distances | None
    ) -> Tensor:
        """Return one bias for all layers, (B or 1, H, T, S)."""
        assert distances is not None
        return distances.vectors


def head_slopes(n_heads: int) -> Tensor:
    """2^(-8/n), 2^(-16/n), …, 2^-8 for n heads; others take every second one of 2n in between."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = _geometric(power, torch.arange(1, power + 1))
    more = _geometric(2 * power, torch.arange(1, 2 * (n_heads - power) + 1, 2))
    return torch.cat([slopes, more])


def _geometric(n: int, exponents: Tensor) -> Tensor:
    # In float32, as checkpoints are trained
    return torch.tensor(2.0 ** (-8.0 / n), dtype=torch.float32) ** exponents
