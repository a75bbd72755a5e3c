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


def fairseq_sinusoids(length: int, d_model: int, first: int) -> Tensor:
    """Sines, then cosines, of pos / 10000^(i/(D/2 - 1)) for positions from `first` on, (L, D).

    The paper has i/(D/2). In float32, as checkpoints are trained: far on, the rounding is visible.
    """
    n_rates = d_model // 2
    rate = torch.exp(torch.arange(n_rates).float() * -(math.log(10000.0) / (n_rates - 1)))
    angle = torch.arange(first, first + length).float()[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def sinusoid_table(config: ModelConfig) -> Tensor:
    """The waves that a config names, (L, D)."""
    length, width = config.n_positions, config.embedding_width
    if config.positions == "sinusoidal_fairseq":
        return fairseq_sinusoids(length, width, config.pad_id + 1)
    return sinusoids(length, width, config.positions == "sinusoidal_halves")


class Sinusoidal(Positions):
    """Fixed waves of different lengths, added to the input."""

    table: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.register_buffer("table", sinusoid_table(config), persistent=False)

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
