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
from qkv.data.items.base import Draw, DrawnItems
from qkv.data.items.pairs import pair_batch
from qkv.data.items.passages import Passages
from qkv.data.ragged import Indices, Ragged, offsets_of, spread

Pairs = tuple[Ragged, Ragged]  # sources and targets
Flags = npt.NDArray[np.bool_]
SPREAD = 2  # standard deviations by which a text may have more spans than expected


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

    def __call__(self, texts: Ragged, random: np.random.Generator) -> Pairs:
        """Make sources and targets of texts."""
        hidden, n_spans = self.counts(texts.lengths)
        kept = texts.lengths - hidden
        if self.config.kind == "spans":
            sizes = cut(hidden, n_spans, random)
            gaps = choose(kept + 1, n_spans, random)
        else:
            sizes, n_spans = poisson(hidden, n_spans, self.table, random)
            gaps = choose(kept + n_spans, n_spans, random) - _enumerated(n_spans)[1]
        return self._pairs(texts, _Spans(n_spans, sizes, gaps, hidden))

    def _pairs(self, texts: Ragged, spans: _Spans) -> Pairs:
        owner, number = _enumerated(spans.counts)
        begins = texts.offsets[owner] + spans.gaps + spans.before
        is_hidden = np.zeros(len(texts.tokens), np.bool_)
        is_hidden[spread(begins, offsets_of(spans.sizes))] = True
        offsets = offsets_of(texts.lengths - spans.hidden + spans.counts)
        positions = offsets[owner] + spans.gaps + number
        if self.config.kind == "infill":
            masks = np.repeat(self.marks, len(positions))
            return _merged(offsets, positions, masks, texts.tokens[~is_hidden]), texts
        source = _merged(offsets, positions, self.marks[number], texts.tokens[~is_hidden])
        offsets = offsets_of(spans.hidden + spans.counts + 1)
        positions = np.append(offsets[owner] + spans.before + number, offsets[1:] - 1)
        marks = self.marks[np.append(number, spans.counts)]
        return source, _merged(offsets, positions, marks, texts.tokens[is_hidden])

    @cached_property
    def table(self) -> npt.NDArray[np.float64]:
        """The Poisson distribution's cumulative probabilities of 0, 1, 2 …"""
        mean = self.config.span_length
        numbers = range(math.ceil(mean + 12 * math.sqrt(mean) + 12))
        logs = [n * math.log(mean) - mean - math.lgamma(n + 1) for n in numbers]
        return np.cumsum(np.exp(logs))


def choose(counts: Indices, chosen: Indices, random: np.random.Generator) -> Indices:
    """Draw for each text `chosen` of the numbers below `counts`, all as likely, sorted."""
    owner, number = _enumerated(counts)
    order = np.lexsort((random.random(len(number)), owner))
    flags = np.zeros(len(number), np.bool_)
    flags[order] = number < chosen[owner]
    return number[flags]


def cut(totals: Indices, n_parts: Indices, random: np.random.Generator) -> Indices:
    """Cut each total into `n_parts` parts, none empty and all ways as likely; return sizes."""
    owner, number = _enumerated(totals)
    order = np.lexsort((random.random(len(number)), number > 0, owner))
    begins = np.zeros(len(number), np.bool_)
    begins[order] = number < n_parts[owner]  # the first always, for it comes before the rest
    return np.diff(np.flatnonzero(begins), append=len(begins))


def poisson(
    totals: Indices, most: Indices, table: npt.NDArray[np.float64], random: np.random.Generator
) -> tuple[Indices, Indices]:
    """Draw sizes until each total is reached, and count them; the last takes what is left."""
    owner, number = _enumerated(most)
    sizes = np.searchsorted(table, random.random(len(number)), side="right")
    sums = np.cumsum(sizes) - sizes
    sums -= np.repeat(sums[number == 0], most)
    used = sums < totals[owner]
    counts = np.bincount(owner[used], minlength=len(totals))
    sizes, sums = sizes[used], sums[used]
    last = np.cumsum(counts) - 1
    sizes[last] = totals - sums[last]
    return sizes, counts


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


class NoisyItems(DrawnItems):
    """Passages of a corpus as pairs of corrupted input and target, drawn anew for each batch."""

    def __init__(self, passages: Passages, noise: Noise, first: Sequence[int] = ()) -> None:
        # Upper bounds, with EOS and BOS.
        source, target = (sizes + len(first) + 1 for sizes in noise.sizes(passages.lengths))
        super().__init__(target, passages.tokens.digest, source)
        self.passages, self.noise, self.first = passages, noise, first

    def packed_shape(self, batch_tokens: int) -> PackedShape:
        """Count the wider side, which may be the source, where others count the target."""
        source, target = int(self.source_sizes.sum()), int(self.target_sizes.sum())
        return super().packed_shape(int(batch_tokens * target / max(source, target)))

    def share(self, items: Indices, rows: Indices, draw: Draw, shape: Packing) -> Batch:
        """Corrupt the passages of a whole batch, and lay out some of them."""
        source, target = (side.take(rows) for side in self.draw(items, draw.random()))
        return pair_batch(source, target, self.passages.special, shape)

    def draw(self, indices: Sequence[int] | Indices, random: np.random.Generator) -> Pairs:
        """Corrupt some passages; each side comes after `first`."""
        framed = self.passages.take(indices)
        offsets = offsets_of(framed.lengths - 2)
        inner = spread(framed.offsets[:-1] + 1, offsets)  # without BOS and EOS
        texts = read = Ragged(framed.tokens[inner], offsets)
        if self.noise.config.permute_sentences:
            ends = self.passages.vocabulary.sentence_ends(framed.tokens)[inner]
            read = _in_random_order(texts, ends, random)
        source, target = self.noise(read, random)
        if self.noise.config.kind == "infill":
            target = texts
        return _led(self.first, source), _led(self.first, target)


def _in_random_order(texts: Ragged, ends: Flags, random: np.random.Generator) -> Ragged:
    """Shuffle the sentences of each text; `ends` are their last tokens."""
    owner, number = _enumerated(texts.lengths)
    begins = np.flatnonzero((number == 0) | np.roll(ends, 1))
    sizes = np.diff(begins, append=len(number))
    order = np.lexsort((random.random(len(begins)), owner[begins]))
    return Ragged(texts.tokens[spread(begins[order], offsets_of(sizes[order]))], texts.offsets)


def _led(first: Sequence[int], texts: Ragged) -> Ragged:
    """Put the same tokens before each sequence."""
    offsets = offsets_of(texts.lengths + len(first))
    positions = (offsets[:-1, None] + np.arange(len(first))).ravel()
    return _merged(offsets, positions, np.tile(first, len(texts)), texts.tokens)


def _merged(
    offsets: Indices, positions: Indices, marks: npt.NDArray[Any], others: npt.NDArray[Any]
) -> Ragged:
    """Write marks at some positions, and the other tokens in their order at the rest."""
    tokens = np.zeros(offsets[-1], np.int32)
    free = np.ones(len(tokens), np.bool_)
    free[positions] = False
    tokens[positions] = marks
    tokens[free] = others
    return Ragged(tokens, offsets)


def _enumerated(counts: Indices) -> tuple[Indices, Indices]:
    """Number `counts` things of each text; return the text of each, and its number there."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - offsets_of(counts)[owner]
