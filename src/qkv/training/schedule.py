"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from qkv.config import TrainConfig

MOST_AUTOMATIC = 1e-3  # small models with a short warm-up would get a rate that wrecks them


def peak_learning_rate(config: TrainConfig, d_model: int) -> float:
    """Learning rate after warm-up: as set, or the paper's 1/√(d_model · warmup), limited."""
    return config.lr or min((d_model * max(config.warmup, 1)) ** -0.5, MOST_AUTOMATIC)


def learning_rate(step: int, config: TrainConfig, d_model: int) -> float:
    """Learning rate of step 1, 2, …: a linear rise over `warmup` steps, then the schedule."""
    peak = peak_learning_rate(config, d_model)
    if step < config.warmup:
        return peak * step / config.warmup
    if config.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(config.warmup, 1) / max(step, 1))
    if config.schedule == "constant":
        return peak
    rest = max(config.steps - config.warmup, 1)
    progress = min((step - config.warmup) / rest, 1.0)
    if config.schedule == "linear":
        return peak * (1 - progress)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))
