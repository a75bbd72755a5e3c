"""The item protocol: encoded examples know their sizes and become batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from qkv.data.batch import Batch, PackedShape
from qkv.data.order import packed_shape
from qkv.data.ragged import Indices


class Draw(NamedTuple):
    """What the randomness of a batch depends on; negative epochs are validation."""

    seed: int = 0
    epoch: int = -1
    number: int = 0  # of the batch in its epoch

    def random(self) -> np.random.Generator:
        """Return a generator that belongs to this batch alone."""
        key = (self.epoch, self.number, 1) if self.epoch >= 0 else (0, self.number, 2)
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))


VALIDATION = Draw()


class Items(ABC):
    """Encoded examples of one split."""

    digest: str = ""
    """Identifies the content, so that a run is resumed with the data it began with."""
    counts_epochs = False
    """Whether indices of items of one size count on from epoch to epoch: epoch · len + item."""

    @property
    @abstractmethod
    def target_sizes(self) -> Indices:
        """Positions that each item takes in a batch."""

    @property
    def source_sizes(self) -> Indices:
        """Positions that each item takes among the sources; 0 where there are none."""
        return np.broadcast_to(np.int64(0), len(self))

    def __len__(self) -> int:
        return len(self.target_sizes)

    @abstractmethod
    def batch(
        self, indices: Indices, draw: Draw = VALIDATION, shape: PackedShape | None = None
    ) -> Batch:
        """Make a batch of some items, padded or, with a shape, packed."""

    def packed_shape(self, batch_tokens: int) -> PackedShape:
        """Choose the shape of all packed batches of these items."""
        return packed_shape(self, batch_tokens)
