"""The position schemes by name."""

from qkv.config import ModelConfig
from qkv.model.disentangled import Disentangled
from qkv.model.positions import Learned, Positions, Sinusoidal
from qkv.model.relative import Relative
from qkv.model.rotary import Rotary

SCHEMES: dict[str, type[Positions]] = {
    "sinusoidal": Sinusoidal,
    "sinusoidal_halves": Sinusoidal,
    "learned": Learned,
    "rotary": Rotary,
    "disentangled": Disentangled,
}


def build_positions(config: ModelConfig, causal: bool = False) -> Positions:
    """The scheme that the config names, for a stack that looks back only or both ways."""
    if config.positions == "relative":
        return Relative(config, causal)
    return SCHEMES[config.positions](config) if config.positions in SCHEMES else Positions()
