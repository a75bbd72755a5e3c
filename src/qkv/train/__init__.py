"""Logits to loss to weights: loss, optimiser, schedule, loop, checkpoints, progress."""

import sys
from types import ModuleType
from typing import Any

from qkv.train.checkpoint import Progress
from qkv.train.display import Display
from qkv.train.log import Curves, JsonLog, Reporter, tensorboard_installed
from qkv.train.loop import Trainer
from qkv.train.loss import cross_entropy
from qkv.train.objectives import (
    Objective,
    contrast,
    hidden_tokens,
    layout_of,
    many_classes,
    next_token,
    number,
    one_class,
    spans,
    token_labels,
)
from qkv.train.optimizer import build_optimizer
from qkv.train.schedule import learning_rate, peak_learning_rate
from qkv.train.step import accumulate, build_loss, update
from qkv.train.validate import complaint, entropy, label_entropy, mean_loss, with_wrong_sources

__all__ = [
    "Curves",
    "Display",
    "JsonLog",
    "Objective",
    "Progress",
    "Reporter",
    "Trainer",
    "accumulate",
    "build_loss",
    "build_optimizer",
    "complaint",
    "contrast",
    "cross_entropy",
    "entropy",
    "hidden_tokens",
    "label_entropy",
    "layout_of",
    "learning_rate",
    "many_classes",
    "mean_loss",
    "next_token",
    "number",
    "one_class",
    "peak_learning_rate",
    "spans",
    "tensorboard_installed",
    "token_labels",
    "update",
    "with_wrong_sources",
]


class _Room(ModuleType):
    """`qkv.train(recipe)` trains, and once this room is imported `qkv.train` is the room."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from qkv.run import train

        return train(*arguments, **settings)


sys.modules[__name__].__class__ = _Room
