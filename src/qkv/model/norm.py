"""Normalisation of each token's vector over its last dimension."""

from torch import nn

from qkv.config import ModelConfig


def build_norm(config: ModelConfig, width: int = 0) -> nn.Module:
    """LayerNorm: (x - mean) / std · g + b; RMSNorm: x / rms(x) · g."""
    if config.norm == "rms":
        return nn.RMSNorm(width or config.d_model, eps=config.norm_epsilon)
    return nn.LayerNorm(width or config.d_model, eps=config.norm_epsilon)
