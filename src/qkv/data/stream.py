"""The batches that training runs through, from any step on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import count, islice
from typing import Generic, Literal, TypeVar

from qkv.data.batch import Batch, Specials, packed_batch, padded_batch
from qkv.data.encoded import EncodedPairs, Indices
from qkv.data.order import HasSizes, packed_plan, packed_shape, padded_plan, validation_plan

Mode = Literal["padded", "packed"]


Items = TypeVar("Items", bound=HasSizes)


class SizedStream(ABC, Generic[Items]):
    """Endless batches, epoch after epoch; the same arguments and step give the same batches.

    Step s consumes batches s·accumulate to (s + 1)·accumulate of all epochs laid end to end, so
    that a run that is resumed at any step goes on exactly as it would have.
    """

    def __init__(
        self,
        items: Items,
        special: Specials,
        mode: Mode,
        batch_tokens: int,
        accumulate: int = 1,
        seed: int = 0,
    ) -> None:
        if not len(items):
            raise ValueError("a stream needs something to make batches of")
        self.items, self.special = items, special
        self.batch_tokens, self.accumulate, self.seed = batch_tokens, accumulate, seed
        self.shape = packed_shape(items, batch_tokens) if mode == "packed" else None
        # How many batches an epoch has is known once it is planned. By epoch, not as a list: the
        # thread that prepares batches and the one that trains may both write the same entry.
        self._n_batches: dict[int, int] = {}

    def plan(self, epoch: int) -> list[Indices]:
        """What each batch of an epoch is made of."""
        if self.shape:
            plan = packed_plan(self.items, self.shape, self.seed, epoch)
        else:
            plan = padded_plan(self.items, self.batch_tokens, self.seed, epoch)
        self._n_batches[epoch] = len(plan)
        return plan

    def position(self, step: int) -> tuple[int, int]:
        """The epoch and the place in its plan where a step begins."""
        index = step * self.accumulate
        for epoch in count():
            if epoch not in self._n_batches:
                self.plan(epoch)
            if index < self._n_batches[epoch]:
                break
            index -= self._n_batches[epoch]
        return epoch, index

    def steps_from(self, step: int = 0) -> Iterator[list[Batch]]:
        """Yield the `accumulate` batches of each step, from `step` on, without end."""
        batches = self._batches_from(*self.position(step))
        while True:
            yield list(islice(batches, self.accumulate))

    def _batches_from(self, epoch: int, index: int) -> Iterator[Batch]:
        for number, indices in enumerate(self.plan(epoch)[index:], index):
            yield self.assemble(indices, (epoch, number))
        for later in count(epoch + 1):
            for number, indices in enumerate(self.plan(later)):
                yield self.assemble(indices, (later, number))

    @abstractmethod
    def assemble(self, indices: Indices, place: tuple[int, int]) -> Batch:
        """Lay out one batch; its epoch and number there decide whatever is drawn by chance."""


class BatchStream(SizedStream[EncodedPairs]):
    """Endless batches of pairs, from any step on."""

    def assemble(self, indices: Indices, place: tuple[int, int]) -> Batch:
        """Lay out the pairs of one batch."""
        if self.shape:
            return packed_batch(self.items, indices, self.special, self.shape)
        return padded_batch(self.items, indices, self.special)


def validation_batches(pairs: EncodedPairs, batch_tokens: int, special: Specials) -> list[Batch]:
    """Padded batches of all `pairs`, short ones first, always the same."""
    plan = validation_plan(pairs, batch_tokens)
    return [padded_batch(pairs, indices, special) for indices in plan]
