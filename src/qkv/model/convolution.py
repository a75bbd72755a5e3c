"""DeBERTa-v2's convolution over neighbouring tokens, beside the first block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model.dropout import Dropout
from qkv.model.mask import Layout
from qkv.model.norm import build_norm


class Neighbours(nn.Module):
    """norm(f(x) + gelu(conv(x))), where f is the first block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.convolution
        self.convolution = nn.Conv1d(config.d_model, config.d_model, size, padding=size // 2)
        self.dropout = Dropout(config.dropout)
        self.norm = build_norm(config)

    def forward(self, x: Tensor, block_output: Tensor, layout: Layout) -> Tensor:
        """Combine the block's input and output, (B, T, D), to the next block's input."""
        if layout.offsets is not None:
            raise ValueError("A convolution would run from one packed sequence into the next.")
        if layout.lengths is not None:  # padding counts as zeros
            real = torch.arange(x.shape[1], device=x.device) < layout.lengths[:, None]
            x = x * real[:, :, None]
        convolved = self.convolution(x.transpose(1, 2)).transpose(1, 2)
        return self.norm(block_output + F.gelu(self.dropout(convolved)))
