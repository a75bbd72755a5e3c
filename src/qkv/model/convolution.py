"""Neighbouring tokens, seen once beside the first block (DeBERTa-v2's convolution)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model.mask import Layout
from qkv.model.norm import build_norm


class Neighbours(nn.Module):
    """norm(f(x) + gelu(conv(x))): what the first block makes of x, and what a few tokens say."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.convolution
        self.convolution = nn.Conv1d(config.d_model, config.d_model, size, padding=size // 2)
        self.dropout = nn.Dropout(config.dropout)
        self.norm = build_norm(config)

    def forward(self, x: Tensor, block_output: Tensor, layout: Layout) -> Tensor:
        """The block's input and output (B, T, D) to the next block's input."""
        if layout.offsets is not None:
            raise ValueError("A convolution would run from one packed sequence into the next.")
        if layout.lengths is not None:  # what stands beyond the end is as if nothing stood there
            real = torch.arange(x.shape[1], device=x.device) < layout.lengths[:, None]
            x = x * real[:, :, None]
        seen = self.convolution(x.transpose(1, 2)).transpose(1, 2)
        return self.norm(block_output + F.gelu(self.dropout(seen)))
