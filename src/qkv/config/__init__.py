"""What a model and a run are: frozen dataclasses, validation, presets, to and from files."""

from qkv.config.decode import DecodeConfig
from qkv.config.denoise import DenoiseConfig
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
from qkv.config.understand import (
    AnswerConfig,
    ClassifyConfig,
    EmbedConfig,
    MaskConfig,
    TagConfig,
    TeacherConfig,
)

__all__ = [
    "PRESETS",
    "AnswerConfig",
    "ChatConfig",
    "ClassifyConfig",
    "DataConfig",
    "DecodeConfig",
    "DenoiseConfig",
    "EmbedConfig",
    "Family",
    "MaskConfig",
    "ModelConfig",
    "Recipe",
    "TagConfig",
    "TeacherConfig",
    "TokenizerConfig",
    "TrainConfig",
    "load_recipe",
    "preset",
    "recipe_from",
    "recipe_to_dict",
]
