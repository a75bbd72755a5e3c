"""Whole runs: a recipe in, a model folder with its scores out."""

from qkv.run.train import Run, score_pairs, train

__all__ = ["Run", "score_pairs", "train"]
