"""Sines and cosines in pairs or in halves: one model, its residual stream's dimensions reordered.

The paper lays PE out as sin, cos, sin, cos, …; Marian puts all sines first. Every weight that reads
from the residual stream or writes to it can have its rows or columns reordered alike, and then the
model computes the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

# Which dimension of a weight runs along the residual stream
ALONG: tuple[tuple[str, int], ...] = (
    (r".*\.table\.weight", 1),
    (r".*norm\.(weight|bias)", 0),
    (r".*(query_key_value|query|key_value|inner|projection)\.weight", 1),
    (r".*(attention\.output|outer)\.(weight|bias)", 0),
)


class Reordered(Mapping[str, Tensor]):
    """Weights whose residual stream is laid out in halves, or in pairs again."""

    def __init__(self, weights: Mapping[str, Tensor], to_halves: bool) -> None:
        self.weights, self.to_halves = weights, to_halves

    def __getitem__(self, name: str) -> Tensor:
        weight = self.weights[name]
        for pattern, dimension in ALONG:
            if re.fullmatch(pattern, name):
                return weight.index_select(dimension, self._order(weight.shape[dimension]))
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

    def _order(self, width: int) -> Tensor:
        pairs = torch.arange(width).view(-1, 2)  # (sine, cosine) of each wave
        to_halves = pairs.t().flatten()
        return to_halves if self.to_halves else to_halves.argsort()
