"""Position schemes: how a model knows order (section 3.5).

A scheme acts in up to three ways: added to the input, turning q and k, or as a bias on the scores.
Attention knows those three and no scheme by name.
"""

import dataclasses
from collections.abc import Collection
from typing import Any

from qkv.config import ModelConfig
from qkv.model.positions.added import Learned, Sinusoidal, sinusoid_table, sinusoids
from qkv.model.positions.alibi import Alibi
from qkv.model.positions.base import Angles, Distances, Order, Positions, Project
from qkv.model.positions.disentangled import Disentangled
from qkv.model.positions.relative import LearnedRelative, Relative
from qkv.model.positions.rotary import Rotary

__all__ = [
    "Alibi",
    "Angles",
    "Disentangled",
    "Distances",
    "Learned",
    "LearnedRelative",
    "Order",
    "Positions",
    "Project",
    "Relative",
    "Rotary",
    "Sinusoidal",
    "build_other_positions",
    "build_positions",
    "sinusoid_table",
    "sinusoids",
]

SCHEMES: dict[str, type[Positions]] = {
    "sinusoidal": Sinusoidal,
    "sinusoidal_halves": Sinusoidal,
    "sinusoidal_fairseq": Sinusoidal,
    "learned": Learned,
    "rotary": Rotary,
    "alibi": Alibi,
    "learned_relative": LearnedRelative,
    "disentangled": Disentangled,
}


UNSCALED: dict[str, Any] = {
    "rotary_scaling": "none",
    "rotary_short_factors": (),
    "rotary_long_factors": (),
}


def build_positions(config: ModelConfig, causal: bool = False) -> Positions:
    """Build the scheme that the config names, for a causal or a bidirectional stack."""
    if config.positions == "relative":
        return Relative(config, causal)
    return SCHEMES[config.positions](config) if config.positions in SCHEMES else Positions()


def build_other_positions(config: ModelConfig, kinds: Collection[str]) -> dict[str, Positions]:
    """Build the schemes of layers that have another than the usual one, by their kind."""
    found: dict[str, Positions] = {"none": Positions()} if "none" in kinds else {}
    if "windowed" in kinds:
        base = config.rotary_window_base
        found["windowed"] = Rotary(dataclasses.replace(config, rotary_base=base, **UNSCALED))
    return found
