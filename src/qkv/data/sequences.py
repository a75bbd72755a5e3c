"""What an encoder is taught from: framed sequences with labels, and their batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from qkv.data.batch import IGNORE, Batch, Places, Side, Specials, in_rows
from qkv.data.encoded import Indices, Ragged, spread
from qkv.data.order import validation_plan
from qkv.data.stream import SizedStream


@dataclass(frozen=True)
class Framed:
    """One text or two as an encoder reads them: BOS first EOS, and then second EOS."""

    tokens: list[int]
    segments: list[int]  # 0 up to the first text's EOS, 1 after it; RoBERTa's are all 0


def frame(
    first: Sequence[int], second: Sequence[int] | None, special: Specials, separators: int = 1
) -> Framed:
    """Put special tokens around one text or two."""
    tokens = [special.bos, *first, special.eos]
    if second is None:
        return Framed(tokens, [0] * len(tokens))
    tokens += [special.eos] * (separators - 1)
    # Where separators tell two texts apart, segments do not, though there may be several kinds.
    segments = [0] * len(tokens) + [int(separators == 1)] * (len(second) + 1)
    return Framed([*tokens, *second, special.eos], segments)


@dataclass(frozen=True, eq=False)
class Sequences:
    """Framed sequences, and what is to be said of each, or of each of its tokens."""

    tokens: Ragged
    segments: Ragged
    labels: npt.NDArray[Any]
    """One row a sequence, (N, …); or, `by_token`, one label for each of `tokens.tokens`."""
    by_token: bool = False
    opinions: npt.NDArray[np.float32] | None = None
    """What teachers say of each sequence: probabilities, (N, C)."""

    def __post_init__(self) -> None:
        expected = len(self.tokens.tokens) if self.by_token else len(self.tokens)
        if len(self.labels) != expected:
            raise ValueError(f"{expected} labels are needed, but there are {len(self.labels)}")

    @classmethod
    def of(
        cls, framed: Sequence[Framed], labels: npt.NDArray[Any], by_token: bool = False
    ) -> Sequences:
        """Lay framed texts end to end."""
        tokens = Ragged.of([one.tokens for one in framed])
        return cls(tokens, Ragged.of([one.segments for one in framed]), labels, by_token)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def source_sizes(self) -> npt.NDArray[np.int64]:
        """An encoder that stands alone has no other side."""
        return np.zeros(len(self), np.int64)

    @property
    def target_sizes(self) -> npt.NDArray[np.int64]:
        """Places that each sequence takes in a batch."""
        return self.tokens.lengths

    def take(self, indices: Sequence[int] | Indices) -> Sequences:
        """Copy out some of the sequences, in the order asked for."""
        chosen = np.asarray(indices, np.int64)
        labels = self.labels[chosen] if not self.by_token else self._labels_of_tokens(chosen)
        opinions = None if self.opinions is None else self.opinions[chosen]
        return Sequences(
            self.tokens.take(chosen), self.segments.take(chosen), labels, self.by_token, opinions
        )

    def _labels_of_tokens(self, chosen: Indices) -> npt.NDArray[Any]:
        offsets = self.tokens.offsets
        taken = Ragged(np.arange(offsets[-1], dtype=np.int32), offsets).take(chosen)
        return np.asarray(self.labels[taken.tokens])


class SequenceStream(SizedStream[Sequences]):
    """Endless batches of labelled sequences, from any step on."""

    def assemble(self, indices: Indices, place: tuple[int, int]) -> Batch:
        """Lay out the sequences of one batch."""
        return padded_sequences(self.items, indices, self.special)


def sequence_batches(sequences: Sequences, batch_tokens: int, special: Specials) -> list[Batch]:
    """Padded batches of all sequences, short ones first, always the same."""
    plan = validation_plan(sequences, batch_tokens)
    return [padded_sequences(sequences, indices, special) for indices in plan]


def padded_sequences(
    sequences: Sequences, indices: Sequence[int] | Indices, special: Specials
) -> Batch:
    """Lay one sequence a row; labels of tokens go with their places, those of none are left out."""
    chosen = sequences.take(indices)
    layout = in_rows(chosen.target_sizes, 1)
    target = side(chosen.tokens, chosen.segments, layout, special.pad)
    if not chosen.by_token:
        said = None if chosen.opinions is None else torch.from_numpy(chosen.opinions)
        return Batch(None, target, torch.from_numpy(chosen.labels), len(chosen), opinions=said)
    counts = chosen.labels != IGNORE
    places = spread(layout.starts, chosen.tokens.offsets)[counts]
    labels = torch.from_numpy(chosen.labels[counts])
    return Batch(None, target, labels, len(labels), torch.from_numpy(places))


def side(tokens: Ragged, segments: Ragged | None, layout: Places, pad: int) -> Side:
    """Write tokens, and the segments that they belong to, to their places."""
    places = spread(layout.starts, tokens.offsets)
    written = np.full(layout.shape, pad, np.int64)
    written.flat[places] = tokens.tokens
    kinds = np.zeros(layout.shape, np.int64)
    if segments is not None:
        kinds.flat[places] = segments.tokens
    return replace(layout.side(torch.from_numpy(written)), segments=torch.from_numpy(kinds))


@dataclass(frozen=True, eq=False)
class Twins:
    """Texts that belong together, framed; texts of one group are never each other's opposites."""

    first: Ragged
    second: Ragged
    groups: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def source_sizes(self) -> npt.NDArray[np.int64]:
        """Places that each first text takes in a batch."""
        return self.first.lengths

    @property
    def target_sizes(self) -> npt.NDArray[np.int64]:
        """Places that each second text takes in a batch."""
        return self.second.lengths


class TwinStream(SizedStream[Twins]):
    """Endless batches of texts that belong together, from any step on."""

    def assemble(self, indices: Indices, place: tuple[int, int]) -> Batch:
        """Lay out the twins of one batch."""
        return padded_twins(self.items, indices, self.special)


def twin_batches(twins: Twins, batch_tokens: int, special: Specials) -> list[Batch]:
    """Padded batches of all twins, short ones first, always the same."""
    return [
        padded_twins(twins, indices, special) for indices in validation_plan(twins, batch_tokens)
    ]


def padded_twins(twins: Twins, indices: Sequence[int] | Indices, special: Specials) -> Batch:
    """The first texts as source, the second ones as target, their groups as labels."""
    first, second = twins.first.take(indices), twins.second.take(indices)
    groups = torch.from_numpy(twins.groups[np.asarray(indices)])
    return Batch(
        side(first, None, in_rows(first.lengths, 1), special.pad),
        side(second, None, in_rows(second.lengths, 1), special.pad),
        groups,
        len(groups),
    )
