"""Adam and AdamW, with weight decay on matrices only."""

from __future__ import annotations

import torch
from torch import nn

from qkv.config import TrainConfig


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimiser over all weights; its learning rate is set anew at each step."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[config.optimizer]
    return kind(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate
