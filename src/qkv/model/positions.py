"""Position schemes: how a model knows order (section 3.5).

A scheme acts in up to three places: added to the input, turning q and k, or as a bias on the
scores. Attention knows those three places and no scheme by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig


class Positions(nn.Module):
    """The scheme that does nothing, and the three places where others act."""

    def add(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add to the input, (B, T, D)."""
        return x

    def angles(self, positions: Tensor) -> Angles | None:
        """What `turn` needs at these positions, looked up once for all layers."""
        return None

    def turn(self, x: Tensor, angles: Angles | None) -> Tensor:
        """Turn queries or keys, (B, H, T, D/H)."""
        return x

    def distances(self, positions: Tensor, key_positions: Tensor) -> Distances | None:
        """What `bias` needs between these queries and keys, looked up once for all layers."""
        return None

    def bias(
        self, query: Tensor, key: Tensor, project: Project, distances: Distances | None
    ) -> Tensor | None:
        """A bias on the scores before they are divided by √d_k, (B or 1, H, T, S)."""
        return None


Project = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A layer's queries and keys of vectors that stand for no token, (R, D) to (H, R, D/H) twice."""


class Distances(NamedTuple):
    """Which distance lies between query and key, (T, S) or (B, 1, T, S), and a vector for each."""

    number: Tensor
    vectors: Tensor  # (R, D); of T5 already laid out as a bias, (B or 1, H, T, S)


class Angles(NamedTuple):
    """cos θ and ±sin θ of each position and dimension, (T, D/H) or (B, 1, T, D/H)."""

    cosine: Tensor
    sine: Tensor


@dataclass(frozen=True)
class Order:
    """A scheme at the positions of this pass, as attention sees it."""

    scheme: Positions
    positions: Tensor  # (T,) or (B, T)
    angles: Angles | None = None
    distances: Distances | None = None

    @classmethod
    def of(cls, scheme: Positions, positions: Tensor, key_positions: Tensor | None = None) -> Order:
        """Look up once what every layer needs; keys stand where the queries do, or elsewhere."""
        keys = positions if key_positions is None else key_positions
        return cls(scheme, positions, scheme.angles(positions), scheme.distances(positions, keys))

    def turn(self, x: Tensor) -> Tensor:
        """Turn queries or keys by their positions."""
        return self.scheme.turn(x, self.angles)

    def bias(self, query: Tensor, key: Tensor, project: Project) -> Tensor | None:
        """The bias of these queries on all keys so far."""
        return self.scheme.bias(query, key, project, self.distances)


def sinusoids(length: int, d_model: int, halves: bool = False) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(…), (L, D).

    In halves, the sines stand first and the cosines after them: the same numbers, permuted.
    """
    rate = torch.exp(
        -math.log(10000.0) * torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    )
    angle = torch.arange(length, dtype=torch.float64)[:, None] * rate  # (L, D/2)
    if halves:
        return torch.cat([angle.sin(), angle.cos()], dim=1).float()
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1).float()


class Sinusoidal(Positions):
    """Fixed waves of different lengths, added to the input; nothing to learn."""

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
        """x + the position's own vector."""
        added: Tensor = self.table(positions)
        return x + added.to(x.dtype)
