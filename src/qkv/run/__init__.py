"""Whole runs: a recipe in, a model folder with its scores out."""

from qkv.run.train import Run, train
from qkv.run.translate import score_pairs

__all__ = ["Run", "score_pairs", "train"]
