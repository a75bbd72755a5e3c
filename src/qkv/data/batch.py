"""What a training step is fed: the one place where the shift, the labels and padding are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.data.encoded import EncodedPairs, Indices, Ragged, spread

IGNORE = -100
"""The label at which no loss is taken (what torch's cross-entropy ignores by default)."""


@dataclass(frozen=True)
class Specials:
    """The ids of the tokens that are not text."""

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
        """Pairs that always fit beside the filler, even where that is all the rest of a side."""
        return self.sequences - self.filler

    @property
    def filler(self) -> int:
        """Segments that an otherwise empty side is cut into."""
        widest = max(self.source_tokens, self.target_tokens)
        return round_up(widest, self.longest) // self.longest


@dataclass(frozen=True, eq=False)
class Side:
    """How the token sequences of one side lie in one tensor, padded or packed."""

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
        return Side(
            moved(self.tokens, device),
            moved(self.lengths, device),
            moved(self.offsets, device),
            self.longest,
            moved(self.first, device),
            moved(self.segments, device),
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """Sources, and targets twice: as the decoder's input and, one place ahead, as its labels.

    An encoder reads `target` alone, and its labels are what its head is to say.
    """

    source: Side | None
    """X: x₁ … x_n, EOS; None where a decoder or an encoder stands alone."""
    target: Side
    """Y_shift: BOS, y₁ … y_m; an encoder's tokens (or pixels)."""
    labels: Tensor
    """Y_label: y₁ … y_m, EOS, in the shape of `target.tokens`; IGNORE where nothing is real."""
    n_labels: int
    """How many labels count."""
    places: Tensor | None = None
    """Where labels stand at some tokens only: int64 (K,), their places in the flattened tokens."""
    pairs: Tensor | None = None
    """Pre-training on pairs: int64 (M,), 1 where the second text is the true one, else 0."""
    opinions: Tensor | None = None
    """What teachers say of each sequence: float32 (M, C), probabilities."""

    @property
    def n_tokens(self) -> int:
        """What a step's pace is counted in: labels or, where few tokens have one, all tokens."""
        tokens = self.target.tokens
        few_labels = tokens.dim() == 2 and self.labels.shape != tokens.shape
        return tokens.numel() if few_labels else self.n_labels

    def to(self, device: torch.device) -> Batch:
        """Copy to a device, without waiting for the copy where that is a GPU."""
        return Batch(
            None if self.source is None else self.source.to(device),
            self.target.to(device),
            moved(self.labels, device),
            self.n_labels,
            moved(self.places, device),
            moved(self.pairs, device),
            moved(self.opinions, device),
        )


def padded_batch(
    pairs: EncodedPairs, indices: Sequence[int] | Indices, special: Specials, multiple: int = 1
) -> Batch:
    """Lay one pair a row and pad to the longest, rounded up to a multiple."""
    chosen = pairs.take(indices)
    source = in_rows(chosen.source_sizes, multiple)
    target = in_rows(chosen.target_sizes, multiple)
    return _batch(chosen, source, target, special)


def packed_batch(
    pairs: EncodedPairs, indices: Sequence[int] | Indices, special: Specials, shape: PackedShape
) -> Batch:
    """Lay pairs end to end; segment m of the target belongs to segment m of the source."""
    chosen = pairs.take(indices)
    source = in_segments(chosen.source_sizes, shape.source_tokens, shape)
    target = in_segments(chosen.target_sizes, shape.target_tokens, shape)
    return _batch(chosen, source, target, special)


@dataclass(frozen=True, eq=False)
class Places:
    """Where the sequences of one side begin, counted through its rows, and what describes them."""

    starts: npt.NDArray[np.int64]
    shape: tuple[int, int]
    lengths: npt.NDArray[np.int64] | None
    offsets: npt.NDArray[np.int32] | None
    longest: int

    def side(self, tokens: Tensor) -> Side:
        """Tokens that were written to these places."""
        lengths = None if self.lengths is None else torch.from_numpy(self.lengths)
        offsets = None if self.offsets is None else torch.from_numpy(self.offsets)
        return Side(tokens, lengths, offsets, self.longest)


def in_rows(sizes: npt.NDArray[np.int64], multiple: int) -> Places:
    """One sequence a row, all rows as wide as the longest, rounded up."""
    width = round_up(int(sizes.max()), multiple)
    starts = np.arange(len(sizes)) * width
    return Places(starts, (len(sizes), width), sizes, None, width)


def in_segments(sizes: npt.NDArray[np.int64], n_tokens: int, shape: PackedShape) -> Places:
    """Cut a side into segments: the sequences, filler to the end, then empty ones.

    The filler has segments too, for kernels leave unwritten what lies in none.
    """
    ends = np.cumsum(sizes)
    filler_ends = np.arange(ends[-1], n_tokens, shape.longest) + shape.longest
    cuts = np.minimum(np.concatenate([ends, filler_ends]), n_tokens)
    if ends[-1] > n_tokens or sizes.max() > shape.longest or len(cuts) > shape.sequences:
        raise ValueError(f"{len(sizes)} sequences of {ends[-1]} tokens overflow {shape}")
    offsets = np.full(shape.sequences + 1, n_tokens, np.int32)
    offsets[0] = 0
    offsets[1 : len(cuts) + 1] = cuts
    return Places(ends - sizes, (1, n_tokens), None, offsets, shape.longest)


def _batch(chosen: EncodedPairs, source: Places, target: Places, special: Specials) -> Batch:
    return Batch(
        source.side(_ended(chosen.source, source, special.pad, special.eos)),
        target.side(_started(chosen.target, target, special.pad, special.bos)),
        _ended(chosen.target, target, IGNORE, special.eos),
        int(chosen.target_sizes.sum()),
    )


def _started(sequences: Ragged, layout: Places, fill: int, bos: int) -> Tensor:
    """Write BOS, y₁ … y_m from each start, and `fill` elsewhere."""
    flat = np.full(layout.shape[0] * layout.shape[1], fill, np.int64)
    flat[layout.starts] = bos
    flat[spread(layout.starts + 1, sequences.offsets)] = sequences.tokens
    return torch.from_numpy(flat.reshape(layout.shape))


def _ended(sequences: Ragged, layout: Places, fill: int, eos: int) -> Tensor:
    """Write y₁ … y_m, EOS from each start, and `fill` elsewhere."""
    flat = np.full(layout.shape[0] * layout.shape[1], fill, np.int64)
    flat[spread(layout.starts, sequences.offsets)] = sequences.tokens
    flat[layout.starts + sequences.lengths] = eos
    return torch.from_numpy(flat.reshape(layout.shape))


def round_up(number: int, multiple: int) -> int:
    """The least multiple that is no smaller than `number`."""
    return -(-number // multiple) * multiple


@overload
def moved(tensor: Tensor, device: torch.device) -> Tensor: ...
@overload
def moved(tensor: None, device: torch.device) -> None: ...


def moved(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    """Copy to a device; from pinned memory, a copy to a GPU runs beside the computation."""
    if tensor is None:
        return None
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
