"""Position schemes: how a model knows order (section 3.5).

A scheme acts in up to three ways: added to the input, turning q and k, or as a bias on the scores.
Attention knows those three and no scheme by name.
"""

from qkv.config import ModelConfig
from qkv.model.positions.added import Learned, Sinusoidal, sinusoid_table, sinusoids
from qkv.model.positions.base import Angles, Distances, Order, Positions, Project
from qkv.model.positions.disentangled import Disentangled
from qkv.model.positions.relative import LearnedRelative, Relative
from qkv.model.positions.rotary import Rotary

__all__ = [
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
    "learned_relative": LearnedRelative,
    "disentangled": Disentangled,
}


def build_positions(config: ModelConfig, causal: bool = False) -> Positions:
    """Build the scheme that the config names, for a causal or a bidirectional stack."""
    if config.positions == "relative":
        return Relative(config, causal)
    return SCHEMES[config.positions](config) if config.positions in SCHEMES else Positions()
