"""Adam, AdamW and Muon, with weight decay on matrices only."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qkv.config import TrainConfig
from qkv.train.muon import Muon, block_matrices


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimiser over all weights; its learning rate is set anew at each step."""
    served = dict(block_matrices(model)) if config.optimizer == "muon" else {}
    matrices = [p for p in model.parameters() if p.ndim >= 2 and p not in served]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if served:
        parts = {"params": list(served), "parts": list(served.values())}
        groups.append({**parts, "weight_decay": config.weight_decay})
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "muon": Muon}[config.optimizer]
    return kind(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate
