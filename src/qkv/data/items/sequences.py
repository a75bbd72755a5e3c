"""Framed sequences for an encoder, with labels of sequences or tokens, or in pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from qkv.data.batch import IGNORE, Batch, Packing, Specials, arrange
from qkv.data.items.base import VALIDATION, Draw, Items
from qkv.data.ragged import Indices, Ragged


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
    # Where several separators tell two texts apart, segments do not.
    segments = [0] * len(tokens) + [int(separators == 1)] * (len(second) + 1)
    return Framed([*tokens, *second, special.eos], segments)


def framed_arrays(framed: Sequence[Framed]) -> dict[str, npt.NDArray[Any]]:
    """Return framed texts as arrays to be cached."""
    segments = Ragged.of([text.segments for text in framed]).tokens.astype(np.int8)
    tokens = Ragged.of([text.tokens for text in framed])
    return {**tokens.arrays("tokens"), "segments": segments}


class SequenceItems(Items):
    """Framed sequences with a label each or, `by_token`, a label for each token."""

    def __init__(
        self,
        tokens: Ragged,
        segments: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        special: Specials,
        *,
        by_token: bool = False,
        digest: str = "",
    ) -> None:
        super().__init__(tokens.lengths, digest)
        self.tokens, self.segments = tokens, Ragged(segments, tokens.offsets)
        self.labels, self.special, self.by_token = labels, special, by_token
        self.opinions: npt.NDArray[np.float32] | None = None  # teachers' probabilities (N, C)

    def batch(self, indices: Indices, draw: Draw = VALIDATION, shape: Packing = None) -> Batch:
        """Lay out sequences; labels of tokens come with their positions, IGNORE is left out."""
        chosen = np.asarray(indices, np.int64)
        tokens = self.tokens.take(chosen)
        placement = arrange(tokens.lengths, shape)
        flat = placement.write(tokens, self.special.pad)
        side = placement.side(flat, self.segments.take(chosen))
        if not self.by_token:
            labels = torch.from_numpy(np.asarray(self.labels[chosen]))
            opinions = None if self.opinions is None else torch.from_numpy(self.opinions[chosen])
            return Batch(None, side, labels, len(chosen), opinions=opinions)
        by_token = Ragged(self.labels, self.tokens.offsets).take(chosen).tokens
        counted = by_token != IGNORE
        positions = torch.from_numpy(placement.positions(tokens.offsets)[counted])
        labels = torch.from_numpy(by_token[counted])
        return Batch(None, side, labels, len(labels), positions)


class TwinItems(Items):
    """Pairs of texts that belong together, framed.

    `groups` (N, 2) numbers equal first texts and equal second texts, which are no opposites.
    """

    def __init__(
        self, first: Ragged, second: Ragged, groups: Indices, special: Specials, digest: str = ""
    ) -> None:
        super().__init__(second.lengths, digest, first.lengths)
        self.first, self.second, self.groups, self.special = first, second, groups, special

    def batch(self, indices: Indices, draw: Draw = VALIDATION, shape: Packing = None) -> Batch:
        """Make the first texts the source, the second ones the target, groups the labels."""
        chosen = np.asarray(indices, np.int64)
        sides = []
        for texts in (self.first.take(chosen), self.second.take(chosen)):
            placement = arrange(texts.lengths)
            none = Ragged(np.zeros(len(texts.tokens), np.int8), texts.offsets)
            sides.append(placement.side(placement.write(texts, self.special.pad), none))
        groups = torch.from_numpy(self.groups[chosen])
        return Batch(sides[0], sides[1], groups, len(chosen))
