"""Sequences of different lengths in one array, in memory or mapped from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences end to end: sequence i is tokens[offsets[i]:offsets[i + 1]]."""

    tokens: npt.NDArray[Any]
    offsets: Indices

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        """Join lists of ids."""
        offsets = offsets_of(np.fromiter(map(len, sequences), np.int64, len(sequences)))
        ids = chain.from_iterable(sequences)
        return cls(np.fromiter(ids, np.int32, int(offsets[-1])), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        index = range(len(self))[index]  # handles negative indices and raises IndexError
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> Indices:
        """Number of tokens in each sequence."""
        return np.diff(self.offsets)

    def arrays(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Return the tokens and lengths as arrays to be stored under a name."""
        return {name: self.tokens, f"{name}.lengths": self.lengths.astype(np.int32)}

    def take(self, indices: Sequence[int] | Indices) -> Ragged:
        """Copy some of the sequences, in the order given."""
        chosen = np.asarray(indices, np.int64)
        starts = self.offsets[chosen]
        offsets = offsets_of(self.offsets[chosen + 1] - starts)
        return Ragged(np.asarray(self.tokens[spread(starts, offsets)]), offsets)


def offsets_of(lengths: npt.NDArray[Any]) -> Indices:
    """Return where sequences of these lengths begin, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def spread(starts: Indices, offsets: Indices) -> Indices:
    """Return the index of each token of ragged sequences if sequence i begins at starts[i]."""
    return np.repeat(starts - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])
