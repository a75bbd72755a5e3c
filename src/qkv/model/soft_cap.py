"""Soft caps: values are squashed into a range smoothly, so that gradients stay (Gemma 2)."""

import torch
from torch import Tensor


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap·tanh(x / cap), which lies within ±cap; x itself where there is no cap (0)."""
    return cap * torch.tanh(x / cap) if cap else x
