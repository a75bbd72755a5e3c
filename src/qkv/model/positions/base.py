"""What a position scheme may do: add to the input, turn q and k, or bias the scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn


class Positions(nn.Module):
    """A scheme that does nothing, and the methods that other schemes override."""

    def add(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add to the input, (B, T, D)."""
        return x

    def angles(self, positions: Tensor) -> Angles | None:
        """Look up what `turn` needs at these positions, once for all layers."""
        return None

    def turn(self, x: Tensor, angles: Angles | None) -> Tensor:
        """Turn queries or keys, (B, H, T, D/H)."""
        return x

    def distances(self, positions: Tensor, key_positions: Tensor) -> Distances | None:
        """Look up what `bias` needs between these queries and keys, once for all layers."""
        return None

    def bias(
        self, query: Tensor, key: Tensor, project: Project, distances: Distances | None
    ) -> Tensor | None:
        """Return a bias on the scores before they are divided by √d_k, (B or 1, H, T, S)."""
        return None


Project = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Projects vectors of distances to a layer's queries and keys, (R, D) to (H, R, D/H) twice."""


class Distances(NamedTuple):
    """The bucket of each query's distance to each key, (T, S) or (B, 1, T, S), and its vectors."""

    number: Tensor
    vectors: Tensor  # (R, D); in T5 already the bias, (B or 1, H, T, S)


class Angles(NamedTuple):
    """cos θ and ±sin θ of each position and dimension, (T, D/H) or (B, 1, T, D/H)."""

    cosine: Tensor
    sine: Tensor


@dataclass(frozen=True)
class Order:
    """A scheme at the positions of one forward pass, as attention uses it."""

    scheme: Positions
    positions: Tensor  # (T,) or (B, T)
    angles: Angles | None = None
    distances: Distances | None = None

    @classmethod
    def of(cls, scheme: Positions, positions: Tensor, key_positions: Tensor | None = None) -> Order:
        """Look up what every layer needs; keys have the queries' positions unless given others."""
        keys = positions if key_positions is None else key_positions
        return cls(scheme, positions, scheme.angles(positions), scheme.distances(positions, keys))

    def turn(self, x: Tensor) -> Tensor:
        """Turn queries or keys by their positions."""
        return self.scheme.turn(x, self.angles)

    def bias(self, query: Tensor, key: Tensor, project: Project) -> Tensor | None:
        """Return the bias on the scores of these queries and keys, or None."""
        return self.scheme.bias(query, key, project, self.distances)
