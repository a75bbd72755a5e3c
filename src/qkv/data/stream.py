"""The batches that training runs through, from any step on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import numpy as np

from qkv.data.batch import Batch, Packing
from qkv.data.items.base import Draw, Items
from qkv.data.order import (
    balanced_shares,
    even_batch,
    is_even,
    packed_plan,
    padded_plan,
    share_shape,
    validation_plan,
)
from qkv.data.ragged import Indices


class Stream:
    """Endless batches, epoch after epoch; the same arguments and step give the same batches.

    Step s consumes batches s·accumulate to (s + 1)·accumulate of all epochs laid end to end, so
    that a run that is resumed at any step goes on exactly as it would have.

    Each of `n_workers` gets the items of its own share of every batch. What a batch consists of
    does not depend on their number.
    """

    def __init__(
        self,
        items: Items,
        batch_tokens: int,
        *,
        packed: bool = False,
        accumulate: int = 1,
        seed: int = 0,
        worker: int = 0,
        n_workers: int = 1,
    ) -> None:
        if not len(items):
            raise ValueError("a stream needs items")
        self.worker, self.n_workers = worker, n_workers
        self.items, self.batch_tokens = items, batch_tokens
        self.accumulate, self.seed = accumulate, seed
        self.shape = items.packed_shape(batch_tokens) if packed else None
        self.rows = max(1, batch_tokens // int(items.target_sizes[0])) if is_even(items) else 0
        self.share_shape = self._share_shape()
        # Batches of each epoch that was planned. By epoch, not as a list: the thread that prepares
        # batches and the one that trains may both write the same entry.
        self._n_batches: dict[int, int] = {}

    @property
    def one_shape(self) -> bool:
        """Whether all batches have the same shape."""
        return self.items.has_one_shape and (self.shape is not None or self.rows > 0)

    def steps_from(self, step: int = 0) -> Iterator[list[Batch]]:
        """Yield the `accumulate` batches of each step, from `step` on, without end."""
        batches = self._batches(step * self.accumulate)
        while True:
            yield [next(batches) for _ in range(self.accumulate)]

    def _batches(self, first: int) -> Iterator[Batch]:
        if self.rows:
            for number in count(first):
                chosen = even_batch(len(self.items), self.rows, self.seed, number)
                chosen = chosen if self.items.counts_epochs else chosen % len(self.items)
                yield self._share(chosen, Draw(self.seed, 0, number))
        start, index = self.position(first)
        for epoch in count(start):
            for number, chosen in enumerate(self.plan(epoch)[index:], index):
                yield self._share(chosen, Draw(self.seed, epoch, number))
            index = 0

    def _share(self, chosen: Indices, draw: Draw) -> Batch:
        """Make this worker's share of a batch; without any items, a batch that does not count."""
        if self.n_workers == 1:
            return self.items.batch(chosen, draw, self.shape)
        known = chosen % len(self.items)  # where indices count on from epoch to epoch
        items = self.items.in_epoch(draw.epoch)
        sizes = items.source_sizes[known], items.target_sizes[known]
        owner = balanced_shares(*sizes, self.n_workers)
        rows = np.flatnonzero(owner == self.worker)
        if len(rows):
            return self.items.share(chosen, rows, draw, self.share_shape)
        batch = self.items.share(chosen, np.zeros(1, np.int64), draw, self.share_shape)
        return replace(batch, n_labels=0, stand_in=True)

    def _share_shape(self) -> Packing:
        if self.shape is None or self.n_workers == 1:
            return self.shape
        if self.rows:
            rows = -(-self.rows // self.n_workers)
            return self.items.packed_shape(rows * int(self.items.target_sizes[0]))
        return share_shape(self.shape, self.n_workers)

    def plan(self, epoch: int) -> list[Indices]:
        """Return the items of each batch of an epoch."""
        items = self.items.in_epoch(epoch)
        if self.shape:
            plan = packed_plan(items, self.shape, self.seed, epoch)
        else:
            plan = padded_plan(items, self.batch_tokens, self.seed, epoch)
        self._n_batches[epoch] = len(plan)
        return plan

    def position(self, batch: int) -> tuple[int, int]:
        """Return the epoch of a batch, and its number there."""
        for epoch in count():
            if epoch not in self._n_batches:
                self.plan(epoch)
            if batch < self._n_batches[epoch]:
                return epoch, batch
            batch -= self._n_batches[epoch]
        raise AssertionError


def validation_batches(items: Items, batch_tokens: int, packed: bool = False) -> Iterator[Batch]:
    """Yield batches of all items, always the same; packed only where all items have one size."""
    shape = items.packed_shape(batch_tokens) if packed and is_even(items) else None
    for number, indices in enumerate(validation_plan(items, batch_tokens)):
        yield items.batch(indices, Draw(number=number), shape)
