"""The batches that training runs through, from any step on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from qkv.data.batch import Batch
from qkv.data.items.base import Draw, Items
from qkv.data.order import (
    even_batch,
    is_even,
    packed_plan,
    padded_plan,
    validation_plan,
)
from qkv.data.ragged import Indices


class Stream:
    """Endless batches, epoch after epoch; the same arguments and step give the same batches.

    Step s consumes batches s·accumulate to (s + 1)·accumulate of all epochs laid end to end, so
    that a run that is resumed at any step goes on exactly as it would have.
    """

    def __init__(
        self,
        items: Items,
        batch_tokens: int,
        *,
        packed: bool = False,
        accumulate: int = 1,
        seed: int = 0,
    ) -> None:
        if not len(items):
            raise ValueError("a stream needs items")
        self.items, self.batch_tokens = items, batch_tokens
        self.accumulate, self.seed = accumulate, seed
        self.shape = items.packed_shape(batch_tokens) if packed else None
        self.rows = max(1, batch_tokens // int(items.target_sizes[0])) if is_even(items) else 0
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
                yield self.items.batch(chosen, Draw(self.seed, 0, number), self.shape)
        start, index = self.position(first)
        for epoch in count(start):
            for number, chosen in enumerate(self.plan(epoch)[index:], index):
                yield self.items.batch(chosen, Draw(self.seed, epoch, number), self.shape)
            index = 0

    def plan(self, epoch: int) -> list[Indices]:
        """Return the items of each batch of an epoch."""
        if self.shape:
            plan = packed_plan(self.items, self.shape, self.seed, epoch)
        else:
            plan = padded_plan(self.items, self.batch_tokens, self.seed, epoch)
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
