"""Relative positions in buckets (T5, Raffel et al. 2020): a number for each distance and head.

Near distances have a bucket each, far ones share. The numbers are added to the scores of every
layer, and each stack has its own table. MPNet (Song et al. 2020) has them beside learned positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model.positions.added import Learned
from qkv.model.positions.base import Distances, Positions, Project


class Relative(Positions):
    """Adds a learnt number to each score, by distance and head; nothing is added to the input."""

    bucket: Tensor  # of each distance, up to where all share the last one

    def __init__(self, config: ModelConfig, causal: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(config.relative_buckets, config.n_heads)
        # A decoder looks back only; an encoder has half of the buckets to each side.
        self.side = 0 if causal else config.relative_buckets // 2
        farthest = config.relative_length or config.n_positions
        reach = torch.arange(max(config.n_positions, farthest + 1))  # beyond, all share the last
        bucket = buckets(reach, self.side or config.relative_buckets, farthest)
        # Computed once, since other devices and compiled code round logarithms differently.
        self.register_buffer("bucket", bucket, persistent=False)

    def distances(self, positions: Tensor, key_positions: Tensor) -> Distances:
        """Look up the bucket of key position - query position, and each head's number there."""
        apart = key_positions[..., None, :] - positions[..., :, None]
        size = (apart.abs() if self.side else (-apart).clamp(min=0)).clamp(max=len(self.bucket) - 1)
        index = self.bucket[size] + self.side * (apart > 0)
        added = self.table(index).movedim(-1, -3)  # (H, T, S) or (B, H, T, S)
        return Distances(index, added if added.dim() == 4 else added[None])

    def bias(
        self, query: Tensor, key: Tensor, project: Project, distances: Distances | None
    ) -> Tensor:
        """Return one bias for all layers, (B or 1, H, T, S)."""
        assert distances is not None
        return distances.vectors


class LearnedRelative(Learned):
    """Adds a learnt vector to the input and a learnt number to each score (MPNet)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.relative = Relative(config, causal=config.causal)
        self.scale = config.score_scale

    def distances(self, positions: Tensor, key_positions: Tensor) -> Distances:
        """Look up each head's number for each distance, which no √d_k divides."""
        found = self.relative.distances(positions, key_positions)
        return Distances(found.number, found.vectors / self.scale)

    def bias(
        self, query: Tensor, key: Tensor, project: Project, distances: Distances | None
    ) -> Tensor:
        """Return one bias for all layers, (B or 1, H, T, S)."""
        return self.relative.bias(query, key, project, distances)


def buckets(apart: Tensor, n_buckets: int, farthest: int) -> Tensor:
    """Bucket of each distance: its own up to half of the buckets, then ever wider ones."""
    exact = n_buckets // 2
    if exact == 0 or farthest <= exact:
        return apart.clamp(max=n_buckets - 1)
    growth = torch.log(apart.float().clamp(min=1) / exact) / math.log(farthest / exact)
    far = exact + (growth * (n_buckets - exact)).long()
    return torch.where(apart < exact, apart, far.clamp(max=n_buckets - 1))
