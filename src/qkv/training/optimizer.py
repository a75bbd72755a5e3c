"""AdamW and Muon, with weight decay on matrices only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig, TrainConfig
from qkv.device import is_half, is_on
from qkv.errors import UserError
from qkv.training.int8_adamw import Int8AdamW
from qkv.training.muon import Muon, hidden_weights
from qkv.training.schedule import peak_learning_rate


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Build the optimizer of all weights but frozen ones; its learning rate is set at each step."""
    freeze(model, config.freeze)
    if config.optimizer == "muon":
        return _muon(model, config)
    return adamw(_trained(model), config)


def adamw(parameters: Iterable[Tensor], config: TrainConfig) -> torch.optim.Optimizer:
    """Build AdamW for some parameters, or for parts of them."""
    groups = _groups(parameters, config.weight_decay)
    if config.optimizer_state == "int8":
        device = next(p.device for group in groups for p in group["params"])
        return Int8AdamW(groups, **_adam_settings(config), compiled=is_on(config.compile, device))
    return torch.optim.AdamW(groups, lr=0.0, **_adam_settings(config), fused=True)


def _adam_settings(config: TrainConfig) -> dict[str, Any]:
    return {"betas": (config.beta1, config.beta2), "eps": config.epsilon}


def freeze(model: nn.Module, prefixes: Sequence[str]) -> None:
    """Exclude from training the weights whose names begin with one of these prefixes."""
    weights = dict(model.named_parameters())
    for prefix in prefixes:
        frozen = [weight for name, weight in weights.items() if name.startswith(prefix)]
        if not frozen:
            raise UserError(
                f"train.freeze: no weight's name begins with {prefix!r}; they are called "
                f"{next(iter(weights))}, {list(weights)[-1]} and the like."
            )
        for weight in frozen:
            weight.requires_grad_(False)
    if not _trained(model):
        raise UserError("train.freeze: nothing is left to train; freeze less.")


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _groups(parameters: Iterable[Tensor], decay: float) -> list[dict[str, Any]]:
    """Group parameters: matrices decay; biases and the gains of norms do not."""
    parameters = list(parameters)
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def _muon(model: nn.Module, config: TrainConfig) -> Muon:
    """Build Muon for the matrices inside the blocks and AdamW for all other weights."""
    hidden = {p: rows for p, rows in hidden_weights(model).items() if p.requires_grad}
    others = [p for p in _trained(model) if p not in hidden]
    assert isinstance(model.config, ModelConfig)
    share = config.muon_lr / peak_learning_rate(config, model.config.d_model)
    half = is_half(config, next(model.parameters()).device)
    decay = config.weight_decay
    adam = {**_adam_settings(config), "fused": True}
    return Muon(hidden, _groups(others, decay), weight_decay=decay, share=share, half=half, **adam)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of the next step; a group with a `share` gets that much of it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("share", 1.0)
