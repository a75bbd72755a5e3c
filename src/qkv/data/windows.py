"""A stream of tokens → windows of one length, as batches: what a language model is trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from qkv.data.batch import IGNORE, Batch, Side, Specials, round_up
from qkv.data.encoded import Indices
from qkv.data.shuffle import permuted
from qkv.data.tokens import Tokens

WindowMode = Literal["rows", "packed"]
Flags = npt.NDArray[np.bool_]
SCANNED = 1 << 24  # tokens whose documents are looked through together


@dataclass(frozen=True, eq=False)
class Windows:
    """How windows become a batch: inputs x_t and, at every place, the label x_{t+1}."""

    tokens: Tokens
    special: Specials
    length: int
    rows: int
    mode: WindowMode
    across: bool
    """Attention runs on from one document into the next."""

    def batch(self, places: Indices) -> Batch:
        """Lay the windows that begin at `places` one a row; rows without one are padding."""
        ids = np.full((self.rows, self.length + 1), self.special.pad, np.int64)
        labels = np.full((self.rows, self.length), IGNORE, np.int64)
        begins = np.zeros((self.rows, self.length + 1), np.bool_)
        for row, place in enumerate(places.tolist()):
            count = min(self.length + 1, len(self.tokens) - place)
            ids[row, :count] = self.tokens.read(place, count)
            labels[row, : count - 1] = ids[row, 1:count]
            begins[row, self.tokens.starts(place, place + count) - place] = True
        # What a document begins with cannot be known from the one before, unless that is seen; and
        # BOS is never in doubt.
        if self.tokens.bos or not self.across:
            labels[begins[:, 1:]] = IGNORE
        return self._laid_out(ids[:, :-1], labels, begins[:, :-1])

    def _laid_out(self, ids: Indices, labels: Indices, begins: Flags) -> Batch:
        n_labels = int((labels != IGNORE).sum())
        if self.across:
            side = Side(_tensor(ids), None, None, self.length)
        elif self.mode == "rows":
            first = np.maximum.accumulate(np.where(begins, np.arange(self.length), 0), axis=1)
            side = Side(_tensor(ids), None, None, self.length, _tensor(first))
        else:
            begins[:, 0] = True
            offsets = np.full(self.n_segments + 1, begins.size, np.int32)
            found = np.flatnonzero(begins)
            offsets[: len(found)] = found
            side = Side(_tensor(ids.reshape(1, -1)), None, torch.from_numpy(offsets), self.length)
            labels = labels.reshape(1, -1)
        return Batch(None, side, _tensor(labels), n_labels)

    @cached_property
    def n_segments(self) -> int:
        """Parts of documents that a batch never has more of; the same for all, as shapes must be.

        Counted, for one very short document among many would make a bound from lengths useless.
        """
        most = 0
        for low in range(0, len(self.tokens), SCANNED):
            starts = self.tokens.starts(low, low + SCANNED + self.length)
            if len(starts):
                ends = np.searchsorted(starts, starts + self.length)
                most = max(most, int((ends - np.arange(len(starts))).max()))
        return round_up(self.rows * min(most + 1, self.length), 8)


def _tensor(array: Indices) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


class WindowStream:
    """Endless batches, epoch after epoch; the same arguments and step give the same batches.

    An epoch cuts the stream into windows from another phase on, and visits them in random order.
    Step s consumes batches s·accumulate to (s + 1)·accumulate of all epochs laid end to end.
    """

    def __init__(
        self,
        tokens: Tokens,
        special: Specials,
        length: int,
        rows: int,
        mode: WindowMode,
        across: bool,
        accumulate: int = 1,
        seed: int = 0,
    ) -> None:
        if len(tokens) < 2:
            raise ValueError("a stream needs at least two tokens")
        self.windows = Windows(tokens, special, length, rows, mode, across)
        self.length, self.rows, self.accumulate, self.seed = length, rows, accumulate, seed
        # Places at which a whole window can begin; a text that is too short is one window itself.
        self.n_places = max(1, len(tokens) - length)
        self.n_phases = min(length, self.n_places)

    def steps_from(self, step: int = 0) -> Iterator[list[Batch]]:
        """Yield the `accumulate` batches of each step, from `step` on, without end."""
        epoch, index = self.position(step)
        while True:
            batches: list[Batch] = []
            for _ in range(self.accumulate):
                places, epoch, index = self._next_places(epoch, index)
                batches.append(self.windows.batch(places))
            yield batches

    def position(self, step: int) -> tuple[int, int]:
        """The epoch, and the place in its order, where a step begins.

        In as many epochs as there are phases each phase comes once, and so each place begins a
        window once: whole cycles of epochs are skipped by a division.
        """
        cycle, index = divmod(step * self.accumulate * self.rows, self.n_places)
        ends = np.cumsum(self._n_windows(self._phases(np.arange(self.n_phases), cycle)))
        epoch = int(np.searchsorted(ends, index, side="right"))
        before = int(ends[epoch - 1]) if epoch else 0
        return cycle * self.n_phases + epoch, index - before

    def _phases(self, epochs: Indices, cycle: int) -> Indices:
        return permuted(epochs, self.n_phases, self.seed, cycle)

    def _n_windows(self, phases: Indices) -> Indices:
        return (self.n_places - 1 - phases) // self.length + 1

    def _next_places(self, epoch: int, index: int) -> tuple[Indices, int, int]:
        """Where the windows of a batch begin, and the epoch and index of the next batch."""
        found: list[Indices] = []
        missing = self.rows
        while missing:
            cycle, number = divmod(epoch, self.n_phases)
            phase = self._phases(np.array([number]), cycle)
            count = int(self._n_windows(phase)[0])
            chosen = np.arange(index, min(index + missing, count))
            found.append(phase + self.length * permuted(chosen, count, self.seed, epoch))
            missing -= len(chosen)
            index += len(chosen)
            if index == count:
                epoch, index = epoch + 1, 0
        return np.concatenate(found), epoch, index


@dataclass(frozen=True, eq=False)
class WindowBatches:
    """All of a text in windows side by side: each token but the first is a label once."""

    windows: Windows

    @property
    def _starts(self) -> range:
        windows = self.windows
        return range(0, len(windows.tokens) - 1, windows.rows * windows.length)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Batch]:
        windows = self.windows
        for start in self._starts:
            end = min(start + self._starts.step, len(windows.tokens) - 1)
            yield windows.batch(np.arange(start, end, windows.length))


def window_batches(
    tokens: Tokens, special: Specials, length: int, rows: int, mode: WindowMode, across: bool
) -> WindowBatches:
    """Batches of one shape of a whole text, made anew each time one goes through them."""
    return WindowBatches(Windows(tokens, special, length, rows, mode, across))
