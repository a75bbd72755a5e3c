"""What a training step reads: the one place where padding and packing are laid out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.data.ragged import Indices, Ragged, spread

IGNORE = -100
"""The label at which no loss is computed (torch's cross-entropy ignores it by default)."""


@dataclass(frozen=True)
class Specials:
    """Ids of the special tokens that batches need."""

    pad: int
    bos: int
    eos: int


@dataclass(frozen=True)
class PackedShape:
    """The one shape that all packed batches of a run have."""

    source_tokens: int
    target_tokens: int
    sequences: int
    longest: int

    @property
    def capacity(self) -> int:
        """Largest number of items that fit beside the filler in any case."""
        return self.sequences - self.filler

    @property
    def filler(self) -> int:
        """Number of segments that fill an otherwise empty side."""
        widest = max(self.source_tokens, self.target_tokens)
        return round_up(widest, self.longest) // self.longest


Packing = PackedShape | None
"""The shape of packed batches; None for padded ones."""


@dataclass(frozen=True, eq=False)
class Side:
    """The token sequences of one side of a batch, padded or packed."""

    tokens: Tensor
    """int64 (B, T); packed: (1, N)."""
    lengths: Tensor | None
    """Padded: int64 (B,); the first lengths[b] tokens of row b are real."""
    offsets: Tensor | None
    """Packed: int32 (M + 1,); sequence m is tokens offsets[m] to offsets[m + 1]."""
    longest: int
    """The longest sequence that a kernel must expect; padded: T; packed: always the same."""
    first: Tensor | None = None
    """Rows that hold several sequences: int64 (B, T), the column where each token's one begins."""
    segments: Tensor | None = None
    """Encoders: int64, in the shape of `tokens`; 0 in a pair's first text, 1 in its second."""

    def to(self, device: torch.device) -> Side:
        """Copy to a device."""
        return _moved(self, device)

    def twice(self) -> Side:
        """Return all sequences, and after them all of them again."""
        offsets, dim = self.offsets, 0
        if offsets is not None:
            offsets, dim = torch.cat([offsets, offsets[1:] + self.tokens.shape[1]]), 1

        def doubled(x: Tensor | None) -> Tensor | None:
            return None if x is None else torch.cat([x, x], dim=dim)

        tokens, segments = torch.cat([self.tokens, self.tokens], dim=dim), doubled(self.segments)
        lengths, first = doubled(self.lengths), doubled(self.first)
        return Side(tokens, lengths, offsets, self.longest, first, segments)


@dataclass(frozen=True, eq=False)
class Batch:
    """Sources, and targets twice: as the decoder's input and, shifted by one, as its labels.

    An encoder reads `target` alone, and its labels are for its head.
    """

    source: Side | None
    """X: x₁ … x_n, EOS; None for a decoder or an encoder alone."""
    target: Side
    """Y_shift: BOS, y₁ … y_m; an encoder's tokens (or pixels)."""
    labels: Tensor
    """Y_label: y₁ … y_m, EOS, in the shape of `target.tokens`; IGNORE where nothing is real."""
    n_labels: int
    """How many labels count."""
    positions: Tensor | None = None
    """Where only some tokens have labels: int64 (K,), their indices in the flattened tokens."""
    pairs: Tensor | None = None
    """Pre-training on pairs: int64 (M,), 1 where the second text is the true one, else 0."""
    opinions: Tensor | None = None
    """What other models say: probabilities of each sequence's classes, float32 (M, C), or
    log-probabilities of each pair of answers, (M, 2)."""
    stand_in: bool = False
    """Whether its loss counts for nothing: a worker without a share of a batch runs one all the
    same, because the others wait for its part in their communication."""

    @property
    def n_tokens(self) -> int:
        """What speed is counted in: labels or, where few tokens have one, all tokens."""
        tokens = self.target.tokens
        few_labels = tokens.dim() == 2 and self.labels.shape != tokens.shape
        return tokens.numel() if few_labels else self.n_labels

    def to(self, device: torch.device) -> Batch:
        """Copy to a device, without waiting for the copy on a GPU."""
        return _moved(self, device)

    def twice(self) -> Batch:
        """Return the batch with all its sequences twice, but with its labels once."""
        source = None if self.source is None else self.source.twice()
        return replace(self, source=source, target=self.target.twice())


Part = TypeVar("Part", Side, Batch)


def _moved(part: Part, device: torch.device) -> Part:
    """Copy all tensors; from pinned memory, a copy to a GPU runs beside the computation."""

    def move(value: Any) -> Any:
        if isinstance(value, Side):
            return value.to(device)
        if not isinstance(value, Tensor):
            return value
        if device.type != "cuda":
            return value.to(device)
        return value.pin_memory().to(device, non_blocking=True)

    return replace(part, **{name: move(value) for name, value in vars(part).items()})


@dataclass(frozen=True, eq=False)
class Placement:
    """Where the sequences of one side begin in a flattened batch, padded or packed."""

    starts: Indices
    shape: tuple[int, int]
    lengths: Indices | None
    offsets: npt.NDArray[np.int32] | None
    longest: int

    def positions(self, offsets: Indices) -> Indices:
        """Return the index of each token of sequences with these offsets."""
        return spread(self.starts, offsets)

    def write(self, sequences: Ragged, fill: int, shift: int = 0) -> npt.NDArray[np.int64]:
        """Write sequences `shift` tokens after their starts, and `fill` elsewhere; flat."""
        flat = np.full(self.shape[0] * self.shape[1], fill, np.int64)
        flat[self.positions(sequences.offsets) + shift] = sequences.tokens
        return flat

    def tensor(self, flat: npt.NDArray[np.int64]) -> Tensor:
        """Give a flat array its shape as a tensor."""
        return torch.from_numpy(flat.reshape(self.shape))

    def side(self, flat: npt.NDArray[np.int64], segments: Ragged | None = None) -> Side:
        """Make a `Side` of tokens that were written to this placement."""
        lengths = None if self.lengths is None else torch.from_numpy(self.lengths)
        offsets = None if self.offsets is None else torch.from_numpy(self.offsets)
        kinds = None if segments is None else self.tensor(self.write(segments, 0))
        return Side(self.tensor(flat), lengths, offsets, self.longest, segments=kinds)


def arrange(sizes: Indices, shape: Packing = None, n_tokens: int = 0) -> Placement:
    """Lay sequences out one a row or, with a shape, end to end in `n_tokens` (the target's)."""
    if shape is None:
        width = int(sizes.max())
        return Placement(np.arange(len(sizes)) * width, (len(sizes), width), sizes, None, width)
    return _pack(sizes, n_tokens or shape.target_tokens, shape)


def _pack(sizes: Indices, n_tokens: int, shape: PackedShape) -> Placement:
    """Cut a side into segments: the sequences, filler to the end, then empty ones.

    The filler has segments too, because kernels leave unwritten what is in none.
    """
    ends = np.cumsum(sizes)
    filler_ends = np.arange(ends[-1], n_tokens, shape.longest) + shape.longest
    cuts = np.minimum(np.concatenate([ends, filler_ends]), n_tokens)
    if ends[-1] > n_tokens or sizes.max() > shape.longest or len(cuts) > shape.sequences:
        raise ValueError(f"{len(sizes)} sequences of {ends[-1]} tokens overflow {shape}")
    offsets = np.full(shape.sequences + 1, n_tokens, np.int32)
    offsets[0] = 0
    offsets[1 : len(cuts) + 1] = cuts
    return Placement(ends - sizes, (1, n_tokens), None, offsets, shape.longest)


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is no smaller than `number`."""
    return -(-number // multiple) * multiple
