"""The item protocol: encoded examples know their sizes and become batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from qkv.data.batch import Batch, PackedShape, Packing
from qkv.data.order import packed_shape
from qkv.data.ragged import Indices
from qkv.errors import UserError


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
    """Encoded examples of one split: how many positions each takes on both sides of a batch.

    `digest` identifies the content, so that a run is resumed with the data it began with.
    """

    counts_epochs = False
    """Whether indices of items of one size count on from epoch to epoch: epoch · len + item."""

    has_one_shape = True
    """Whether batches of items of one size have one shape, labels included."""

    def __init__(
        self, target_sizes: Indices, digest: str, source_sizes: Indices | None = None
    ) -> None:
        self.target_sizes, self.digest = target_sizes, digest
        none = np.broadcast_to(np.int64(0), len(target_sizes))
        self.source_sizes = none if source_sizes is None else source_sizes

    def __len__(self) -> int:
        return len(self.target_sizes)

    @abstractmethod
    def batch(self, indices: Indices, draw: Draw = VALIDATION, shape: Packing = None) -> Batch:
        """Make a batch of some items, padded or, with a shape, packed."""

    def share(self, items: Indices, rows: Indices, draw: Draw, shape: Packing) -> Batch:
        """Make a batch of some rows of a larger one, with what was drawn at random for that."""
        return self.batch(items[rows], draw, shape)

    def in_epoch(self, epoch: int) -> Items:
        """Return the items as an epoch has them, which may differ in size from epoch to epoch."""
        return self

    def packed_shape(self, batch_tokens: int) -> PackedShape:
        """Choose the shape of all packed batches of these items."""
        return packed_shape(self, batch_tokens)


class DrawnItems(Items):
    """Items of which something is drawn at random for a whole batch, whoever has which share."""

    def batch(self, indices: Indices, draw: Draw = VALIDATION, shape: Packing = None) -> Batch:
        """Draw for a batch, and lay out all of it."""
        return self.share(indices, np.arange(len(indices)), draw, shape)

    @abstractmethod
    def share(self, items: Indices, rows: Indices, draw: Draw, shape: Packing) -> Batch:
        """Draw for a whole batch, and lay out some rows of it."""


class FilteredItems(Items):
    """Items of which only some `rows` are left."""

    @cached_property
    def rows(self) -> Indices:
        """The encoded example that each item is; at first all of them."""
        return np.arange(len(self.target_sizes))

    def keep(
        self, reasons: Mapping[str, npt.NDArray[np.bool_]], what: str, settings: str
    ) -> tuple[Self, str]:
        """Return the items for which no reason to drop them holds, and a sentence about the others.

        `what` they are and the `settings` that decide it are named in messages.
        """
        fit = np.ones(len(self), bool)
        dropped = []
        for reason, holds in reasons.items():
            if number := int((fit & holds).sum()):
                dropped.append(f"{number:,} {reason}")
            fit &= ~holds
        if not fit.any():
            raise UserError(
                f"data: all {len(self):,} {what} were dropped ({', '.join(dropped)}); correct the "
                f"data, or raise {settings} under [data]."
            )
        kept = copy(self)
        kept.rows, kept.target_sizes = self.rows[fit], self.target_sizes[fit]
        kept.source_sizes = self.source_sizes[fit]
        if not dropped:
            return kept, f"{len(self):,} {what}"
        return kept, f"{len(kept):,} of {len(self):,} {what}; dropped {', '.join(dropped)}"
