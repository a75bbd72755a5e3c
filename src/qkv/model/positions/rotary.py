"""Rotary positions: q and k are turned by angles that grow with the position (Su et al. 2021).

Turned by mθ and nθ, two vectors have a product that depends on m - n alone: order enters as
distance. Dimension i is paired with i + D/2H, and each pair turns at its own rate; where only a
share of a head is turned, its first dimensions are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.model.positions.base import Angles, Positions


class Rotary(Positions):
    """Rotates queries and keys; it has no weights and adds nothing to the input."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # In float32, as checkpoints are trained: at far positions, the rounding is visible.
        position = torch.arange(config.n_positions, dtype=torch.float32)
        angle = position[:, None] * rates(config)  # (L, D/2H)
        sine, cosine = angle.sin() * loudness(config), angle.cos() * loudness(config)
        self.register_buffer("cosine", torch.cat([cosine, cosine], 1), persistent=False)
        self.register_buffer("sine", torch.cat([-sine, sine], 1), persistent=False)

    def angles(self, positions: Tensor) -> Angles:
        """Look up the tables at these positions."""
        if positions.dim() == 2:  # every row of the batch has its own
            positions = positions[:, None]
        return Angles(self.cosine[positions], self.sine[positions])

    def turn(self, x: Tensor, angles: Angles | None) -> Tensor:
        """(a, b) to (a·cos θ - b·sin θ, b·cos θ + a·sin θ) in each pair."""
        assert angles is not None
        if (width := angles.cosine.shape[-1]) < x.shape[-1]:
            return torch.cat([self.turn(x[..., :width], angles), x[..., width:]], dim=-1)
        swapped = x.roll(x.shape[-1] // 2, dims=-1)  # (b, a): the halves are swapped
        return torch.addcmul(x * angles.cosine, swapped, angles.sine).to(x.dtype)


def rates(config: ModelConfig) -> Tensor:
    """Angle by which each pair turns per position, scaled as the config says, (D/2H,)."""
    width, base, factor = config.d_rotary, config.rotary_base, config.rotary_factor
    if config.rotary_scaling == "ntk":  # squeeze the slow pairs most, the fastest not at all
        base *= factor ** (width / (width - 2))
    rate = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    if config.rotary_scaling == "linear":
        return rate / factor
    if config.rotary_scaling == "llama3":
        return _blend(rate, factor, llama3_share(rate, config))
    if config.rotary_scaling == "yarn":
        return _blend(rate, factor, yarn_share(config))
    if config.rotary_scaling == "longrope":
        longer = config.max_length > config.trained_length
        factors = config.rotary_long_factors if longer else config.rotary_short_factors
        return 1.0 / (torch.tensor(factors) * base ** (torch.arange(0, width, 2) / width))
    return rate


def _blend(rate: Tensor, factor: float, kept: Tensor) -> Tensor:
    """Keep a rate where `kept` is 1, divide it by the factor where that is 0."""
    return rate * kept + rate / factor * (1 - kept)


def llama3_share(rate: Tensor, config: ModelConfig) -> Tensor:
    """Llama 3: share of the original rate, by a pair's turns within the trained context."""
    turns = config.trained_length * rate / (2 * math.pi)
    slow, fast = config.rotary_slow, config.rotary_fast or 4.0
    return ((turns - slow) / (fast - slow)).clamp(0, 1)


def yarn_share(config: ModelConfig) -> Tensor:
    """YaRN: share of the original rate, a linear ramp over the pair index (Peng et al. 2023)."""
    n_pairs, width = config.d_rotary // 2, config.d_rotary

    def pair_that_turns(times: float) -> float:
        wave = config.trained_length / (times * 2 * math.pi)
        return width * math.log(wave) / (2 * math.log(config.rotary_base))

    low = max(math.floor(pair_that_turns(config.rotary_fast or 32.0)), 0)
    high = min(math.ceil(pair_that_turns(config.rotary_slow)), width - 1)
    ramp = (torch.arange(n_pairs, dtype=torch.float32) - low) / max(high - low, 0.001)
    return 1 - ramp.clamp(0, 1)


def loudness(config: ModelConfig) -> float:
    """YaRN, LongRoPE: factor on queries and keys, since a softmax over more keys is flatter."""
    if config.rotary_scaling == "longrope":
        return math.sqrt(1 + math.log(config.rotary_factor) / math.log(config.trained_length))
    if config.rotary_scaling != "yarn":
        return 1.0
    return 0.1 * math.log(config.rotary_factor) + 1.0
