"""The position-wise feed-forward layer (section 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model.dropout import Dropout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """act(x·W₁ + b₁)·W₂ + b₂; gated: (act(x·W_gate) * x·W₁)·W₂, both from one product."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gated = config.gated
        self.activation = ACTIVATIONS[config.activation]
        self.inner = nn.Linear(config.d_model, config.d_ff * (1 + config.gated), bias=config.bias)
        self.outer = nn.Linear(config.d_ff, config.d_model, bias=config.bias)
        self.dropout = Dropout(config.activation_dropout)

    def hidden(self, x: Tensor) -> Tensor:
        """Compute the inner activations, (B, T, F)."""
        if self.gated:
            gate, x = self.inner(x).chunk(2, dim=-1)
            return self.activation(gate) * x
        return self.activation(self.inner(x))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to each position by itself, (B, T, D)."""
        hidden = self.hidden(x)
        return self.outer(self.dropout(hidden) if self.training else hidden)
