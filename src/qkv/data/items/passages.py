"""Passages of plain text that fit a model, singly or as pairs that are true or false."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qkv.data.batch import IGNORE, Specials
from qkv.data.corpus.tokens import Tokens
from qkv.data.ragged import Indices, Ragged, offsets_of, spread
from qkv.errors import UserError
from qkv.text.vocabulary import Vocabulary

PairKind = Literal["none", "next", "order"]
SCANNED = 1 << 20  # tokens searched at a time for positions to cut at
TRIES = 4  # texts of other documents, of which the one nearest in length replaces a second text


@dataclass(frozen=True, eq=False)
class Drawn:
    """Framed sequences; of pairs, the segments and whether the second text is the true one."""

    sequences: Ragged
    segments: Ragged | None = None
    """0 in a pair's first text, 1 in its second."""
    pairs: Indices | None = None
    """1 where the second text is the true one, 0 where not, IGNORE where there is no second."""


class Passages:
    """The text of a corpus cut into passages that fit a model; only their positions are stored.

    A passage ends with its document, a sentence or at least a word. It becomes BOS text EOS, or a
    pair: BOS first EOS second EOS, with `separators` EOS in the middle.
    """

    def __init__(
        self,
        tokens: Tokens,
        special: Specials,
        vocabulary: Vocabulary,
        length: int,
        pairs: PairKind = "none",
        separators: int = 1,
        what: str = "the text",
    ) -> None:
        n_framing = 2 + (separators if pairs != "none" else 0)
        self.tokens, self.special, self.vocabulary = tokens, special, vocabulary
        self.pairs, self.separators = pairs, separators
        begins, ends = _documents(tokens, special)
        cuts = _cuts(tokens, vocabulary, begins, ends, length - n_framing)
        self.starts = np.sort(np.concatenate([begins, cuts]))
        self.lengths = np.sort(np.concatenate([ends, cuts])) - self.starts
        # The first passage of each document, and how many passages there are.
        self.documents = np.append(np.searchsorted(self.starts, begins), len(self.starts))
        # Upper bounds: a passage that does not become a pair takes less.
        self.target_sizes = self.lengths + n_framing
        if pairs == "next" and len(begins) < 2:
            raise UserError(
                f"mask: pairs = 'next' takes false second texts from other documents, but {what} "
                f"has {len(begins)}; see documents under [data], give more text, or use 'order'."
            )

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, indices: Sequence[int] | Indices) -> Ragged:
        """Copy out some passages, each framed as one text, in the order asked for."""
        texts = self._texts(np.asarray(indices, np.int64))
        none = Ragged(texts.tokens[:0], np.zeros_like(texts.offsets))
        return self._framed(texts, none)[0]

    def draw(self, indices: Sequence[int] | Indices, random: np.random.Generator) -> Drawn:
        """Copy out some passages; of those that become pairs, half are made false ones."""
        if self.pairs == "none":
            return Drawn(self.take(indices))
        chosen = np.asarray(indices, np.int64)
        texts = self._texts(chosen)
        middles = self._middles(texts, random)
        single = middles == texts.lengths
        true = single | (random.random(len(texts)) < 0.5)
        if self.pairs == "order":
            turned = np.where(true, middles, texts.lengths - middles)
            first = _part(texts, np.where(true, 0, middles), turned)
            second = _part(texts, np.where(true, middles, 0), texts.lengths - turned)
        else:
            first = _part(texts, np.zeros_like(middles), middles)
            second = _part(texts, middles, texts.lengths - middles)
            second = self._exchanged(chosen, second, np.flatnonzero(~true), random)
        sequences, segments = self._framed(first, second)
        return Drawn(sequences, segments, np.where(single, IGNORE, true.astype(np.int64)))

    def _texts(self, indices: Indices) -> Ragged:
        starts, lengths = self.starts[indices], self.lengths[indices]
        for start, end in zip(starts.tolist(), (starts + lengths).tolist(), strict=True):
            self.tokens.check_ids(start, end)
        offsets = offsets_of(lengths)
        ids = self.tokens.ids[spread(starts, offsets)]
        return Ragged(ids.astype(np.int32), offsets)

    def _middles(self, texts: Ragged, random: np.random.Generator) -> Indices:
        """Choose where each text's second part begins: after a sentence, or at least at a word.

        That is its end where it has but one word.
        """
        starts, owner = texts.offsets[:-1], np.repeat(np.arange(len(texts)), texts.lengths)
        inner = np.ones(len(owner), np.bool_)
        inner[starts] = False
        after = inner & np.roll(self.vocabulary.sentence_ends(texts.tokens), 1)
        has_sentences = np.bincount(owner[after], minlength=len(texts)) > 0
        words = inner & self.vocabulary.word_starts(texts.tokens)
        cuts = np.flatnonzero(np.where(has_sentences[owner], after, words))
        counts = np.bincount(owner[cuts], minlength=len(texts))
        drawn = np.cumsum(counts) - counts + (random.random(len(texts)) * counts).astype(np.int64)
        chosen = np.append(cuts, 0)[drawn]  # one more, for texts at the end that have none
        return np.where(counts, chosen - starts, texts.lengths)

    def _exchanged(
        self, indices: Indices, second: Ragged, false: Indices, random: np.random.Generator
    ) -> Ragged:
        """Put texts of other documents in the place of some, none longer than what it replaces.

        They begin where second texts do and end where passages do, and the first of a few that is
        long enough is taken, so that what they say tells them from the true ones, and little else.
        """
        sizes = second.lengths[false]
        low, high = self._document(np.repeat(indices[false], TRIES))
        others = random.integers(len(self) - (high - low))
        others += np.where(others >= low, high - low, 0)
        texts = self._texts(others)
        starts = self.starts[others] + self._middles(texts, random) % texts.lengths
        last = self._document(others)[1] - 1
        rest = (self.starts[last] + self.lengths[last] - starts).reshape(-1, TRIES)
        best = np.argmax(np.minimum(rest, sizes[:, None]), axis=1)
        chosen = np.arange(len(false)) * TRIES + best
        parts = [second[number] for number in range(len(second))]
        for number, start, most in zip(
            false.tolist(), starts[chosen].tolist(), rest.flat[chosen].tolist(), strict=True
        ):
            parts[number] = self._read(start, most, len(parts[number]))
        return _end_to_end(parts)

    def _document(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the first passage of each passage's document, and the first of the next one."""
        number = np.searchsorted(self.documents, indices, side="right")
        return self.documents[number - 1], self.documents[number]

    def _read(self, start: int, rest: int, most: int) -> npt.NDArray[np.int64]:
        """Read the `rest` tokens from `start` on, cut as passages are if they exceed `most`."""
        if rest <= most:
            return self.tokens.read(start, rest)
        ids = self.tokens.read(start, most + 1)
        return ids[: _Breaks(ids, self.vocabulary).best(0, most)]

    def _framed(self, first: Ragged, second: Ragged) -> tuple[Ragged, Ragged]:
        """Put special tokens around one text or two, and tell which tokens are of the second."""
        paired = second.lengths > 0
        middles = 1 + first.lengths + np.where(paired, self.separators, 1)
        sizes = middles + np.where(paired, second.lengths + 1, 0)
        offsets = offsets_of(sizes)
        tokens = np.full(offsets[-1], self.special.eos, np.int32)
        tokens[offsets[:-1]] = self.special.bos
        tokens[spread(offsets[:-1] + 1, first.offsets)] = first.tokens
        tokens[spread(offsets[:-1] + middles, second.offsets)] = second.tokens
        segments = np.arange(offsets[-1]) >= np.repeat(offsets[:-1] + middles, sizes)
        return Ragged(tokens, offsets), Ragged(segments.astype(np.int32), offsets)


def _documents(tokens: Tokens, special: Specials) -> tuple[Indices, Indices]:
    """Find where the text of each non-empty document begins and ends, without BOS and EOS."""
    size = len(tokens)
    if not size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    starts = tokens.starts(0, size)
    begins = starts + tokens.bos
    ends = starts - 1
    has_ended = tokens.read(size - 1, 1)[0] == special.eos
    ends = np.append(ends[1:], size - has_ended)
    return begins[ends > begins], ends[ends > begins]


def _cuts(
    tokens: Tokens, vocabulary: Vocabulary, begins: Indices, ends: Indices, room: int
) -> Indices:
    """Find where to cut documents of more than `room` tokens."""
    cuts = array("q")
    breaks, low, high = None, 0, 0
    long = ends - begins > room
    for start, end in zip(begins[long].tolist(), ends[long].tolist(), strict=True):
        while end - start > room:
            if breaks is None or start + room >= high:
                low, high = start, min(start + max(SCANNED, room + 1), len(tokens))
                breaks = _Breaks(tokens.read(low, high - low), vocabulary)
            start = low + breaks.best(start - low, room)
            cuts.append(start)
    return np.frombuffer(cuts, np.int64) if cuts else np.zeros(0, np.int64)


class _Breaks:
    """The positions at which a text is best cut."""

    def __init__(self, ids: npt.NDArray[Any], vocabulary: Vocabulary) -> None:
        positions = np.arange(len(ids))
        after_sentence = np.append(False, vocabulary.sentence_ends(ids)[:-1])
        word = vocabulary.word_starts(ids)
        self._sentences = np.maximum.accumulate(np.where(after_sentence, positions, 0))
        self._words = np.maximum.accumulate(np.where(word, positions, 0))

    def best(self, start: int, room: int) -> int:
        """The last end of a sentence, or else of a word, in the last third of a passage's room."""
        end = start + room
        for before in (self._sentences, self._words):
            cut = int(before[end])
            if cut >= end - room // 3:
                return cut
        return end


def _part(texts: Ragged, starts: Indices, lengths: Indices) -> Ragged:
    offsets = offsets_of(lengths)
    return Ragged(texts.tokens[spread(texts.offsets[:-1] + starts, offsets)], offsets)


def _end_to_end(texts: Sequence[npt.NDArray[Any]]) -> Ragged:
    tokens = np.concatenate([np.zeros(0, np.int32), *texts]).astype(np.int32)
    return Ragged(tokens, offsets_of(np.array([len(text) for text in texts], np.int64)))
