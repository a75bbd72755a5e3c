"""Denoising: corrupted text in, the hidden spans (T5) or the whole text (BART) out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.config import DenoiseConfig
from qkv.data.batch import Batch, PackedShape, Packing
from qkv.data.items.base import VALIDATION, Draw, Items
from qkv.data.items.pairs import pair_batch
from qkv.data.items.passages import Passages
from qkv.data.order import permuted
from qkv.data.ragged import Indices, Ragged, offsets_of, spread

Pairs = tuple[Ragged, Ragged]  # sources and targets
Flags = npt.NDArray[np.bool_]
LENGTHS, POSITIONS, SENTENCES, USES = range(4)  # what the random numbers of a token decide
RANGE = 1 << 52  # whole numbers up to this are exact as floats
SPREAD = 2  # standard deviations by which a text may have more spans than expected


@dataclass(frozen=True)
class Chances:
    """Random numbers from 0 up to 1 for the positions of a corpus, new ones each epoch.

    A text is thus corrupted in the same way whatever batch it is in.
    """

    seed: int
    epoch: int

    def at(self, positions: Indices, use: int) -> npt.NDArray[np.float64]:
        """Return the numbers of some positions, for one use."""
        return permuted(positions * USES + use, RANGE, self.seed, self.epoch) / RANGE

    def choose(self, counts: Indices, chosen: Indices, starts: Indices) -> Indices:
        """Draw for each text `chosen` of the numbers below `counts`, all as likely, sorted."""
        owner, number = _enumerated(counts)
        order = np.lexsort((self.at(starts[owner] + number, POSITIONS), owner))
        flags = np.zeros(len(number), np.bool_)
        flags[order] = number < chosen[owner]
        return number[flags]

    def parts(self, totals: Indices, n_parts: Indices, starts: Indices) -> Indices:
        """Cut each total into `n_parts` parts, none empty and all ways as likely; return sizes."""
        owner, number = _enumerated(totals)
        order = np.lexsort((self.at(starts[owner] + number, LENGTHS), number > 0, owner))
        begins = np.zeros(len(number), np.bool_)
        begins[order] = number < n_parts[owner]  # the first always, for it stands before the rest
        return np.diff(np.flatnonzero(begins), append=len(begins))

    def poisson(
        self, totals: Indices, most: Indices, starts: Indices, table: npt.NDArray[np.float64]
    ) -> tuple[Indices, Indices]:
        """Draw sizes until each total is reached, and count them; the last takes what is left."""
        owner, number = _enumerated(most)
        sizes = np.searchsorted(table, self.at(starts[owner] + number, LENGTHS), side="right")
        sums = np.cumsum(sizes) - sizes
        sums -= np.repeat(sums[number == 0], most)
        used = sums < totals[owner]
        counts = np.bincount(owner[used], minlength=len(totals))
        sizes, sums = sizes[used], sums[used]
        last = np.cumsum(counts) - 1
        sizes[last] = totals - sums[last]
        return sizes, counts


@dataclass(frozen=True, eq=False)
class Noise:
    """Hides round(share·n) of the n tokens of each text in spans, each behind one mark.

    Raffel et al. 2020 (3.1.4) have round(hidden / span_length) spans, which never touch, and tell
    them by sentinels. In Lewis et al. 2020 (2.2), lengths are Poisson's, and an empty span is a
    mask where nothing is missing.
    """

    config: DenoiseConfig
    marks: npt.NDArray[np.int32]
    """The ids of the sentinels in their order, or of the mask alone."""

    def counts(self, lengths: npt.NDArray[np.int64]) -> tuple[Indices, Indices]:
        """Count the tokens of texts that are hidden, and their spans (infill: at the most)."""
        hidden = np.rint(lengths * self.config.hidden_share).astype(np.int64)
        hidden = np.clip(hidden, 1, np.maximum(lengths - 1, 1))
        mean = self.config.span_length
        if self.config.kind == "spans":
            spans = np.rint(hidden / mean).astype(np.int64)
            return hidden, np.clip(spans, 1, np.maximum(lengths - hidden, 1))
        # No more than tokens either, so that no source is longer than its text.
        spans = np.ceil((hidden + SPREAD * np.sqrt(hidden)) / mean).astype(np.int64)
        return hidden, np.minimum(spans, hidden)

    def sizes(self, lengths: npt.NDArray[np.int64]) -> tuple[Indices, Indices]:
        """Count the tokens of the sources (infill: at the most) and targets of texts."""
        hidden, spans = self.counts(lengths)
        written = hidden + spans + 1 if self.config.kind == "spans" else lengths
        return lengths - hidden + spans, written

    def __call__(self, texts: Ragged, starts: Indices, chances: Chances) -> Pairs:
        """Make sources and targets of texts, which begin at these positions of a corpus."""
        hidden, n_spans = self.counts(texts.lengths)
        kept = texts.lengths - hidden
        if self.config.kind == "spans":
            sizes = chances.parts(hidden, n_spans, starts)
            gaps = chances.choose(kept + 1, n_spans, starts)
        else:
            sizes, n_spans = chances.poisson(hidden, n_spans, starts, self._table)
            places = chances.choose(kept + n_spans, n_spans, starts)
            gaps = places - _enumerated(n_spans)[1]
        return self._pairs(texts, _Spans(n_spans, sizes, gaps, hidden))

    def _pairs(self, texts: Ragged, spans: _Spans) -> Pairs:
        owner, number = _enumerated(spans.counts)
        begins = texts.offsets[owner] + spans.gaps + spans.before
        is_hidden = np.zeros(len(texts.tokens), np.bool_)
        is_hidden[spread(begins, offsets_of(spans.sizes))] = True
        offsets = offsets_of(texts.lengths - spans.hidden + spans.counts)
        places = offsets[owner] + spans.gaps + number
        if self.config.kind == "infill":
            masks = np.repeat(self.marks, len(places))
            return _merged(offsets, places, masks, texts.tokens[~is_hidden]), texts
        source = _merged(offsets, places, self.marks[number], texts.tokens[~is_hidden])
        offsets = offsets_of(spans.hidden + spans.counts + 1)
        places = np.append(offsets[owner] + spans.before + number, offsets[1:] - 1)
        marks = self.marks[np.append(number, spans.counts)]
        return source, _merged(offsets, places, marks, texts.tokens[is_hidden])

    @cached_property
    def _table(self) -> npt.NDArray[np.float64]:
        """The Poisson distribution's cumulative probabilities of 0, 1, 2 …"""
        mean = self.config.span_length
        numbers = range(math.ceil(mean + 12 * math.sqrt(mean) + 12))
        logs = [n * math.log(mean) - mean - math.lgamma(n + 1) for n in numbers]
        return np.cumsum(np.exp(logs))


@dataclass(frozen=True, eq=False)
class _Spans:
    """The spans of several texts, in order."""

    counts: Indices
    """Spans in each text."""
    sizes: Indices
    """Tokens in each span."""
    gaps: Indices
    """Tokens that are shown before each span."""
    hidden: Indices
    """Tokens of each text that are in spans."""

    @cached_property
    def before(self) -> Indices:
        """Tokens that are hidden before each span."""
        earlier = np.cumsum(self.sizes) - self.sizes
        return earlier - np.repeat(offsets_of(self.hidden)[:-1], self.counts)


class NoisyItems(Items):
    """Passages of a corpus as pairs of corrupted input and target; each epoch has others."""

    def __init__(self, passages: Passages, noise: Noise, first: Sequence[int] = ()) -> None:
        # Upper bounds, with EOS and BOS.
        source, target = (sizes + len(first) + 1 for sizes in noise.sizes(passages.lengths))
        super().__init__(target, passages.tokens.digest, source)
        self.passages, self.noise, self.first = passages, noise, first

    def packed_shape(self, batch_tokens: int) -> PackedShape:
        """Count the wider side, which may be the source, where others count the target."""
        source, target = int(self.source_sizes.sum()), int(self.target_sizes.sum())
        return super().packed_shape(int(batch_tokens * target / max(source, target)))

    def batch(self, indices: Indices, draw: Draw = VALIDATION, shape: Packing = None) -> Batch:
        """Corrupt the passages of one batch, and lay them out."""
        source, target = self.draw(indices, draw.seed, max(draw.epoch, 0))
        return pair_batch(source, target, self.passages.special, shape)

    def draw(self, indices: Sequence[int] | Indices, seed: int, epoch: int) -> Pairs:
        """Corrupt some passages as one seed and epoch decide; each side comes after `first`."""
        pairs = self._corrupted(np.asarray(indices, np.int64), Chances(seed, epoch))
        return _led(self.first, pairs[0]), _led(self.first, pairs[1])

    def _corrupted(self, chosen: Indices, chances: Chances) -> Pairs:
        starts = self.passages.starts[chosen]
        framed = self.passages.take(chosen)
        offsets = offsets_of(framed.lengths - 2)
        inner = spread(framed.offsets[:-1] + 1, offsets)  # without BOS and EOS
        texts = Ragged(framed.tokens[inner], offsets)
        if not self.noise.config.permute_sentences:
            return self.noise(texts, starts, chances)
        ends = self.passages.vocabulary.sentence_ends(framed.tokens)[inner]
        shuffled = _in_random_order(texts, ends, starts, chances)
        return self.noise(shuffled, starts, chances)[0], texts


def _in_random_order(texts: Ragged, ends: Flags, starts: Indices, chances: Chances) -> Ragged:
    """Shuffle the sentences of each text; `ends` are their last tokens."""
    owner, number = _enumerated(texts.lengths)
    begins = np.flatnonzero((number == 0) | np.roll(ends, 1))
    sizes = np.diff(begins, append=len(number))
    chance = chances.at(starts[owner[begins]] + number[begins], SENTENCES)
    order = np.lexsort((chance, owner[begins]))
    return Ragged(texts.tokens[spread(begins[order], offsets_of(sizes[order]))], texts.offsets)


def _led(first: Sequence[int], texts: Ragged) -> Ragged:
    """Put the same tokens before each sequence."""
    offsets = offsets_of(texts.lengths + len(first))
    places = (offsets[:-1, None] + np.arange(len(first))).ravel()
    return _merged(offsets, places, np.tile(first, len(texts)), texts.tokens)


def _merged(
    offsets: Indices, places: Indices, marks: npt.NDArray[Any], others: npt.NDArray[Any]
) -> Ragged:
    """Write marks at some positions, and the other tokens in their order at the rest."""
    tokens = np.zeros(offsets[-1], np.int32)
    free = np.ones(len(tokens), np.bool_)
    free[places] = False
    tokens[places] = marks
    tokens[free] = others
    return Ragged(tokens, offsets)


def _enumerated(counts: Indices) -> tuple[Indices, Indices]:
    """Number `counts` things of each text; return the text of each, and its number there."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - offsets_of(counts)[owner]
