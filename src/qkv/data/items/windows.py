"""Windows of one length over a stream of tokens: what a language model is trained on."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from qkv.data.batch import IGNORE, Batch, PackedShape, Packing, Side, Specials, round_up
from qkv.data.corpus.tokens import Tokens
from qkv.data.items.base import VALIDATION, Draw, Items
from qkv.data.order import permuted
from qkv.data.ragged import Indices

SCANNED = 1 << 24  # tokens whose documents are counted at a time


class WindowItems(Items):
    """Windows with inputs x_t and labels x_{t+1}, as rows of one length.

    In training, each epoch cuts the text from another offset on, and indices count on from epoch
    to epoch; `in_order`, windows cover the whole text side by side. With `across`, attention
    crosses from one document into the next.
    """

    counts_epochs = True

    def __init__(
        self,
        tokens: Tokens,
        special: Specials,
        length: int,
        across: bool = False,
        in_order: bool = False,
        seed: int = 0,
    ) -> None:
        self.tokens, self.special, self.length, self.across = tokens, special, length, across
        self.in_order, self.seed = in_order, seed
        # Positions at which a whole window can begin; a text that is too short is one window.
        n_starts = max(1, len(tokens) - length)
        self.n_phases = min(length, n_starts)
        count = (n_starts - self.n_phases) // length + 1
        if in_order:
            count = -(-(len(tokens) - 1) // length)
        super().__init__(np.broadcast_to(np.int64(length), count), tokens.digest)

    def starts(self, indices: Indices) -> Indices:
        """Return where windows begin; in training, an index is epoch · len(self) + window."""
        if self.in_order:
            return indices * self.length
        epochs, windows = np.divmod(indices, len(self))
        cycles, turns = np.divmod(epochs, self.n_phases)
        phases = np.zeros_like(indices)
        for cycle in np.unique(cycles):  # in each cycle of epochs, each offset comes once
            here = cycles == cycle
            phases[here] = permuted(turns[here], self.n_phases, self.seed, int(cycle))
        return phases + self.length * windows

    def batch(self, indices: Indices, draw: Draw = VALIDATION, shape: Packing = None) -> Batch:
        """Lay windows out one a row; with a shape, as segments, padded to its size."""
        rows = shape.target_tokens // self.length if shape else len(indices)
        ids = np.full((rows, self.length + 1), self.special.pad, np.int64)
        labels = np.full((rows, self.length), IGNORE, np.int64)
        begins = np.zeros((rows, self.length + 1), np.bool_)
        for row, start in enumerate(self.starts(np.asarray(indices, np.int64)).tolist()):
            count = min(self.length + 1, len(self.tokens) - start)
            ids[row, :count] = self.tokens.read(start, count)
            labels[row, : count - 1] = ids[row, 1:count]
            begins[row, self.tokens.starts(start, start + count) - start] = True
        # A document's first token cannot be predicted from the one before, unless that is seen;
        # and BOS is never in doubt.
        if self.tokens.bos or not self.across:
            labels[begins[:, 1:]] = IGNORE
        return self._lay_out(ids[:, :-1], labels, begins[:, :-1], shape)

    def _lay_out(
        self, ids: Indices, labels: Indices, begins: npt.NDArray[np.bool_], shape: Packing
    ) -> Batch:
        if self.across:
            side = Side(_tensor(ids), None, None, self.length)
        elif shape is None:
            first = np.maximum.accumulate(np.where(begins, np.arange(self.length), 0), axis=1)
            side = Side(_tensor(ids), None, None, self.length, _tensor(first))
        else:
            begins[:, 0] = True
            offsets = np.full(shape.sequences + 1, begins.size, np.int32)
            starts = np.flatnonzero(begins)
            offsets[: len(starts)] = starts
            side = Side(_tensor(ids.reshape(1, -1)), None, torch.from_numpy(offsets), self.length)
            labels = labels.reshape(1, -1)
        return Batch(None, side, _tensor(labels), int((labels != IGNORE).sum()))

    def packed_shape(self, batch_tokens: int) -> PackedShape:
        """Choose the number of rows, and of parts of documents that no batch exceeds."""
        rows = max(1, batch_tokens // self.length)
        return PackedShape(
            0,
            rows * self.length,
            round_up(rows * min(self._most_documents + 1, self.length), 8),
            self.length,
        )

    @cached_property
    def _most_documents(self) -> int:
        """Largest number of documents that begin in a window, counted over the whole text.

        One very short document among many would make a bound from lengths useless.
        """
        most = 0
        for low in range(0, len(self.tokens), SCANNED):
            starts = self.tokens.starts(low, low + SCANNED + self.length)
            # Where no window holds one more than the most so far, which is quickly seen, go on.
            if (starts[most:] - starts[: max(0, len(starts) - most)] < self.length).any():
                ends = np.searchsorted(starts, starts + self.length)
                most = max(most, int((ends - np.arange(len(starts))).max()))
        return most


def _tensor(array: Indices) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
