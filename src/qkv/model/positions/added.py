"""Positions added to the input: the paper's fixed sinusoids, and learnt vectors (section 3.5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model.positions.base import Positions


def sinusoids(length: int, d_model: int, halves: bool = False) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(…), (L, D).

    With `halves`, all sines come first and then all cosines: equal numbers, permuted.
    """
    rate = torch.exp(
        -math.log(10000.0) * torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    )
    angle = torch.arange(length, dtype=torch.float64)[:, None] * rate  # (L, D/2)
    if halves:
        return torch.cat([angle.sin(), angle.cos()], dim=1).float()
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1).float()


class Sinusoidal(Positions):
    """Fixed waves of different lengths, added to the input."""

    table: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        halves = config.positions == "sinusoidal_halves"
        table = sinusoids(config.n_positions, config.embedding_width, halves)
        self.register_buffer("table", table, persistent=False)

    def add(self, x: Tensor, positions: Tensor) -> Tensor:
        """x + PE."""
        return x + self.table[positions].to(x.dtype)


class Learned(Positions):
    """One learnt vector for each position, added to the input."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(config.n_positions, config.embedding_width)

    def add(self, x: Tensor, positions: Tensor) -> Tensor:
        """x + the position's vector."""
        added: Tensor = self.table(positions)
        return x + added.to(x.dtype)
