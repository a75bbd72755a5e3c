"""Rows of tokens in batches for inference: of similar length, within a budget, padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536}  # of a batch, padding included, by device


def batches(
    sizes: Sequence[float], budget: float, most_padding: float = 1.0
) -> Iterator[list[int]]:
    """Yield rows to run together, by index, the largest first.

    Rows take as much as the largest of their batch, together at most `budget` (one alone may take
    more); at most `most_padding` of the budget is padding.
    """
    rows = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    start, padding = 0, 0.0
    for end, row in enumerate(rows):
        widest = sizes[rows[start]]
        padding += widest - sizes[row]
        full = (end + 1 - start) * widest > budget or padding > most_padding * budget
        if full and end > start:
            yield rows[start:end]
            start, padding = end, 0.0
    if rows:
        yield rows[start:]


def pad_rows(rows: Sequence[Sequence[int]], value: int = 0) -> Tensor:
    """Lay rows out in one tensor, filled up at their ends, (B, T) int64."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=torch.int64)


def on_device(values: Tensor | Sequence[Any], device: torch.device) -> Tensor:
    """Copy values to a device; a GPU takes them when it gets there, and nobody waits for it."""
    tensor = values if isinstance(values, Tensor) else torch.tensor(values)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
