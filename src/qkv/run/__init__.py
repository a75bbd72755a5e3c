"""Whole runs: a recipe in, a model folder with its scores out."""
