"""Token ids of a whole corpus, without the cost of a Python object for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of different lengths, end to end: number i is tokens[offsets[i]:offsets[i + 1]]."""

    tokens: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        """Lay plain lists of ids end to end."""
        offsets = _offsets(np.fromiter(map(len, sequences), np.int64, len(sequences)))
        ids = chain.from_iterable(sequences)
        return cls(np.fromiter(ids, np.int32, int(offsets[-1])), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        index = range(len(self))[index]  # counts from the end where negative, and knows the end
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of tokens in each sequence."""
        return np.diff(self.offsets)

    def take(self, indices: Sequence[int] | Indices) -> Ragged:
        """Copy out some of the sequences, in the order asked for."""
        chosen = np.asarray(indices, np.int64)
        starts = self.offsets[chosen]
        offsets = _offsets(self.offsets[chosen + 1] - starts)
        return Ragged(self.tokens[spread(starts, offsets)], offsets)


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Sources and their targets as token ids, without BOS or EOS: `batch` adds those."""

    source: Ragged
    target: Ragged

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise ValueError(f"{len(self.source)} sources but {len(self.target)} targets")

    def __len__(self) -> int:
        return len(self.source)

    @property
    def source_sizes(self) -> npt.NDArray[np.int64]:
        """Places that each source takes in a batch: x₁ … x_n and EOS."""
        return self.source.lengths + 1

    @property
    def target_sizes(self) -> npt.NDArray[np.int64]:
        """Places that each target takes in a batch: BOS and y₁ … y_m."""
        return self.target.lengths + 1

    def take(self, indices: Sequence[int] | Indices) -> EncodedPairs:
        """Copy out some of the pairs, in the order asked for."""
        return EncodedPairs(self.source.take(indices), self.target.take(indices))


def spread(starts: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> Indices:
    """Where each token of ragged sequences lies if sequence i begins at place starts[i]."""
    shifts = np.repeat(starts - offsets[:-1], np.diff(offsets))
    return shifts + np.arange(offsets[-1])


def _offsets(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
