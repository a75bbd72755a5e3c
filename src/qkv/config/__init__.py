"""What a model and a run are: frozen dataclasses, validation, presets, to and from files."""

from qkv.config.decode import DecodeConfig
from qkv.config.model import Family, ModelConfig
from qkv.config.presets import PRESETS, preset
from qkv.config.recipe import (
    ChatConfig,
    DataConfig,
    Recipe,
    TokenizerConfig,
    TrainConfig,
    load_recipe,
    recipe_from,
    recipe_to_dict,
)

__all__ = [
    "PRESETS",
    "ChatConfig",
    "DataConfig",
    "DecodeConfig",
    "Family",
    "ModelConfig",
    "Recipe",
    "TokenizerConfig",
    "TrainConfig",
    "load_recipe",
    "preset",
    "recipe_from",
    "recipe_to_dict",
]
