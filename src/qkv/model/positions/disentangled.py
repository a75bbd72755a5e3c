"""Disentangled positions (DeBERTa, He et al. 2021): content and distance are scored apart.

A score is content to content, plus content to position (query with the vector of the distance) plus
position to content (key with the vector of the distance), each by the layer's own projections of
one table of distances that all layers share.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model.norm import build_norm
from qkv.model.positions.base import Distances, Positions, Project


class Disentangled(Positions):
    """Biases the scores by learnt vectors of distances; nothing is added to the input."""

    bucket: Tensor  # of each distance, as far as a row reaches

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_buckets = config.relative_buckets
        self.table = nn.Embedding(2 * self.n_buckets, config.d_model)
        self.norm = build_norm(config) if config.position_norm else nn.Identity()
        reach = torch.arange(config.n_positions)
        bucket = buckets(reach, self.n_buckets, config.relative_length or config.n_positions)
        # Computed once, since other devices and compiled code round logarithms differently.
        self.register_buffer("bucket", bucket, persistent=False)

    def distances(self, positions: Tensor, key_positions: Tensor) -> Distances:
        """Look up the bucket of query position - key position, and the vectors of all buckets."""
        apart = positions[..., :, None] - key_positions[..., None, :]
        size = apart.abs().clamp(max=len(self.bucket) - 1)
        index = self.n_buckets + apart.sign() * self.bucket[size]
        index = index.clamp(0, 2 * self.n_buckets - 1)
        return Distances(
            index if index.dim() == 2 else index[:, None], self.norm(self.table.weight)
        )

    def bias(
        self, query: Tensor, key: Tensor, project: Project, distances: Distances | None
    ) -> Tensor:
        """Q·K_rᵀ + Q_r·Kᵀ, each taken at the bucket of its distance, (B, H, T, S)."""
        assert distances is not None
        relative_query, relative_key = project(distances.vectors)  # (H, R, D/H)
        index = distances.number.expand(*query.shape[:3], key.shape[2])
        content_to_position = (query @ relative_key.transpose(-2, -1)).gather(-1, index)
        position_to_content = (relative_query @ key.transpose(-2, -1)).gather(-2, index)
        return content_to_position + position_to_content


def buckets(apart: Tensor, n_buckets: int, farthest: int) -> Tensor:
    """Bucket of each distance: its own up to half of the buckets, then ever wider ones."""
    half = n_buckets // 2
    if farthest - 1 <= half:  # every distance has a bucket of its own
        return apart
    size = apart.abs().clamp(min=half)
    whole = torch.log(torch.full((), (farthest - 1) / half))  # rounded like the others
    growth = torch.log(size / half) / whole
    far = half + torch.ceil(growth * (half - 1)).long()
    return torch.where(apart.abs() <= half, apart, far * apart.sign())
