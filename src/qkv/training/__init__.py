"""Logits to loss to weights: loss, objectives, optimizer, schedule, loop, checkpoints, progress."""

from qkv.training.checkpoint import TrainState
from qkv.training.distribution import ALONE, Distribution, joined, local_device, restarted
from qkv.training.interrupt import TrainingInterrupt
from qkv.training.layout import Layout, make_layout
from qkv.training.loop import Trainer
from qkv.training.loss import consistent_cross_entropy, cross_entropy
from qkv.training.objectives import (
    Objective,
    answer_log_probabilities,
    consistent_next_token,
    contrast,
    layout_of,
    many_classes,
    masked_tokens,
    next_token,
    number,
    one_class,
    preference,
    spans,
    token_labels,
)
from qkv.training.optimizer import build_optimizer
from qkv.training.progress import Curves, Display, JsonLog, Reporter
from qkv.training.schedule import learning_rate, peak_learning_rate
from qkv.training.step import LossSum, accumulate, build_loss, update
from qkv.training.validate import complaint, entropy, mean_loss, total_loss, with_wrong_sources

__all__ = [
    "ALONE",
    "Curves",
    "Display",
    "Distribution",
    "JsonLog",
    "Layout",
    "LossSum",
    "Objective",
    "Reporter",
    "TrainState",
    "Trainer",
    "TrainingInterrupt",
    "accumulate",
    "answer_log_probabilities",
    "build_loss",
    "build_optimizer",
    "complaint",
    "consistent_cross_entropy",
    "consistent_next_token",
    "contrast",
    "cross_entropy",
    "entropy",
    "joined",
    "layout_of",
    "learning_rate",
    "local_device",
    "make_layout",
    "many_classes",
    "masked_tokens",
    "mean_loss",
    "next_token",
    "number",
    "one_class",
    "peak_learning_rate",
    "preference",
    "restarted",
    "spans",
    "token_labels",
    "total_loss",
    "update",
    "with_wrong_sources",
]
