"""Images as sequences: a patch is a token (Dosovitskiy et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig


class Patches(nn.Module):
    """Pixels to vectors: each patch flattened and projected, after a learnt first token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.size = config.patch_size
        self.projection = nn.Linear(config.n_channels * self.size**2, config.embedding_width)
        self.first = nn.Parameter(torch.zeros(config.embedding_width))

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, channels, height, width) to (B, 1 + patches, D)."""
        size = self.size
        cut = pixels.unflatten(3, (-1, size)).unflatten(
            2, (-1, size)
        )  # (B, c, rows, s, columns, s)
        flat = cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, rows·columns, c·s·s)
        x = self.projection(flat)
        return torch.cat([self.first.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
