"""Sentence pairs that are segmented anew in every epoch, with BPE dropout."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from qkv.data.batch import Batch, PackedShape, Packing
from qkv.data.bpe_dropout import Merges
from qkv.data.items.base import VALIDATION, Draw, Items
from qkv.data.items.pairs import PairItems
from qkv.data.order import packed_shape
from qkv.data.ragged import Indices, Ragged, offsets_of
from qkv.text import Tokenizer

SAMPLES = 32
"""Segmentations drawn of each distinct word; each of its occurrences takes one in each epoch."""


@dataclass(frozen=True, eq=False)
class SegmentedTexts:
    """Texts as words, and the segmentations among which each word chooses."""

    words: Ragged
    """Number of each word of each text; equal words have equal numbers."""
    segmentations: Ragged
    """Ids of SAMPLES segmentations of word 0 and its plain one, then of word 1, …"""

    @classmethod
    def of(
        cls,
        texts: Ragged,
        word_lengths: Ragged,
        merges: Merges,
        dropout: float,
        random: np.random.Generator,
    ) -> SegmentedTexts:
        """Draw segmentations of the words of encoded texts, given how many tokens each has."""
        numbers, distinct = _distinct(Ragged(texts.tokens, offsets_of(word_lengths.tokens)))
        index = np.arange(len(distinct))
        drawn = merges.segment(distinct.take(index.repeat(SAMPLES)), dropout, random)
        both = Ragged(
            np.concatenate([drawn.tokens, distinct.tokens]),
            np.concatenate([drawn.offsets, drawn.offsets[-1] + distinct.offsets[1:]]),
        )
        samples = index[:, None] * SAMPLES + np.arange(SAMPLES)
        order = np.column_stack([samples, len(drawn) + index])
        return cls(Ragged(numbers, word_lengths.offsets), both.take(order.flatten()))

    def draw(self, longest: int, random: np.random.Generator) -> Ragged:
        """Segment all texts at random, but in the plain way those that get over `longest`."""
        first = self.words.tokens * (SAMPLES + 1)
        chosen = first + random.integers(SAMPLES, size=len(first))
        lengths, offsets = self.segmentations.lengths, self.words.offsets
        too_long = np.diff(offsets_of(lengths[chosen])[offsets]) > longest
        chosen = np.where(np.repeat(too_long, self.words.lengths), first + SAMPLES, chosen)
        drawn = self.segmentations.take(chosen)
        return Ragged(drawn.tokens, drawn.offsets[offsets])

    @property
    def longest(self) -> int:
        """Tokens of the longest text, if each word had its longest segmentation."""
        lengths = self.segmentations.lengths.reshape(-1, SAMPLES + 1).max(axis=1)
        return int(np.diff(offsets_of(lengths[self.words.tokens])[self.words.offsets]).max())


class SegmentedPairs(Items):
    """Pairs whose segmentation is a function of the seed and the epoch; none is over the limit."""

    def __init__(
        self,
        plain: PairItems,
        tokenizers: tuple[Tokenizer, Tokenizer],
        dropout: float,
        max_length: int,
        seed: int = 0,
    ) -> None:
        """Draw the segmentations of pairs that were encoded by word."""
        assert plain.words is not None
        self.plain, self.seed, self.sides = plain, seed, list[SegmentedTexts]()
        sides = zip((plain.source, plain.target), plain.words, tokenizers, strict=True)
        for number, (texts, lengths, tokenizer) in enumerate(sides):
            random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number, 4)))
            chosen = texts.take(plain.rows), lengths.take(plain.rows)
            self.sides.append(SegmentedTexts.of(*chosen, Merges.of(tokenizer), dropout, random))
        longest = max(side.longest for side in self.sides) + 1  # with EOS or BOS
        self.longest = min(max_length, longest)
        self._drawn: tuple[int, PairItems] | None = None
        first = self.in_epoch(0)
        super().__init__(first.target_sizes, plain.digest, first.source_sizes)

    def in_epoch(self, epoch: int) -> PairItems:
        """Segment all pairs as an epoch has them."""
        drawn = self._drawn
        if drawn is None or drawn[0] != epoch:
            key = np.random.SeedSequence(self.seed, spawn_key=(epoch, 3))
            random = np.random.default_rng(key)
            source, target = (side.draw(self.longest - 1, random) for side in self.sides)
            drawn = epoch, PairItems(source, target, self.plain.special)
            self._drawn = drawn
        return drawn[1]

    def batch(self, indices: Indices, draw: Draw = VALIDATION, shape: Packing = None) -> Batch:
        """Lay pairs out as the epoch has them; in validation, in the plain way."""
        items = self.plain if draw.epoch < 0 else self.in_epoch(draw.epoch)
        return items.batch(indices, draw, shape)

    def packed_shape(self, batch_tokens: int) -> PackedShape:
        """Choose the shape by the first epoch's lengths, with room for the longest of any epoch."""
        return packed_shape(self, batch_tokens, self.longest)

    def label_counts(self) -> npt.NDArray[np.int64]:
        """Count how often each token is a label in the plain segmentation."""
        return self.plain.label_counts()


def _distinct(words: Ragged) -> tuple[Indices, Ragged]:
    """Number words, equal ones alike, and return each of the distinct ones once."""
    content = words.tokens.astype(np.int32).tobytes()
    bounds = (words.offsets * np.dtype(np.int32).itemsize).tolist()
    known: dict[bytes, int] = {}
    numbers = [known.setdefault(content[begin:end], len(known)) for begin, end in pairwise(bounds)]
    distinct = [np.frombuffer(word, np.int32).tolist() for word in known]
    return np.array(numbers, np.int64), Ragged.of(distinct)
