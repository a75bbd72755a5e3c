"""The position schemes by name."""

from qkv.config import ModelConfig
from qkv.model.disentangled import Disentangled
from qkv.model.positions import Learned, Positions, Sinusoidal
from qkv.model.rotary import Rotary

SCHEMES: dict[str, type[Positions]] = {
    "sinusoidal": Sinusoidal,
    "sinusoidal_halves": Sinusoidal,
    "learned": Learned,
    "rotary": Rotary,
    "disentangled": Disentangled,
}


def build_positions(config: ModelConfig) -> Positions:
    """The scheme that the config names."""
    return SCHEMES[config.positions](config) if config.positions in SCHEMES else Positions()
