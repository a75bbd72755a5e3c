"""What a model and a run are: frozen dataclasses, validation, presets, one record per task."""

from qkv.config.model import Family, ModelConfig
from qkv.config.presets import PRESETS, preset
from qkv.config.recipe import SECTIONS, Recipe, load_recipe, recipe_from, recipe_to_dict, to_toml
from qkv.config.sections import (
    DRAWING,
    AnswerConfig,
    ChatConfig,
    ClassifyConfig,
    DataConfig,
    DecodeConfig,
    DenoiseConfig,
    EmbedConfig,
    MaskConfig,
    Pooling,
    TagConfig,
    TeacherConfig,
    TokenizerConfig,
    TrainConfig,
)
from qkv.config.tasks import TASKS, TaskSpec

__all__ = [
    "DRAWING",
    "PRESETS",
    "SECTIONS",
    "TASKS",
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
    "Pooling",
    "Recipe",
    "TagConfig",
    "TaskSpec",
    "TeacherConfig",
    "TokenizerConfig",
    "TrainConfig",
    "load_recipe",
    "preset",
    "recipe_from",
    "recipe_to_dict",
    "to_toml",
]
