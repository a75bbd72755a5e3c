"""BPE dropout (Provilkov et al. 2020): words segmented with merges skipped at random.

The `tokenizers` library has it too, but draws from a generator that cannot be seeded, so that a
resumed run could not go on exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.data.ragged import Indices, Ragged, offsets_of
from qkv.errors import UserError
from qkv.text import Tokenizer

NEVER = np.iinfo(np.int64).max  # rank of two pieces that do not merge
ROWS = 65_536  # words segmented at a time


@dataclass(frozen=True, eq=False)
class Merges:
    """The merges of a BPE vocabulary as arrays, and the characters or bytes of each piece."""

    size: int
    """Number of pieces in the vocabulary."""
    pairs: Indices
    """(R,) left · size + right of each merge, sorted."""
    ranks: Indices
    """(R,) order of learning of each of `pairs`, and `results` by that order."""
    results: Indices
    """(R,) id of the piece that each merge makes, by rank."""
    spellings: Ragged
    """Indices of the pieces that no merge makes, of which each piece consists."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Merges:
        """Take the merges of a tokenizer, which must be of BPE."""
        merges = tokenizer.merges
        if not merges:
            raise UserError(
                "data.bpe_dropout skips merges, but the tokenizer has none; use one of kind 'bpe', "
                "or leave bpe_dropout out."
            )
        size = len(tokenizer)
        spellings = [[id] for id in range(size)]
        for left, right, result in merges:
            if spellings[result] == [result]:
                spellings[result] = spellings[left] + spellings[right]
        table = np.array(merges, np.int64)
        pairs = table[:, 0] * size + table[:, 1]
        order = np.argsort(pairs, kind="stable")
        return cls(size, pairs[order], order, table[:, 2], Ragged.of(spellings))

    def segment(self, words: Ragged, dropout: float, random: np.random.Generator) -> Ragged:
        """Segment words, given as ids of any segmentation, with merges dropped at random.

        At each step, each merge that could be applied is dropped with probability `dropout`, and
        the first learned of the others is applied; where none is left, the word is done.
        """
        spelled = self.spellings.take(words.tokens)
        spelled = Ragged(spelled.tokens, spelled.offsets[words.offsets])
        lengths = np.zeros(len(words), np.int64)
        parts: list[tuple[Indices, Indices]] = []
        for length in np.unique(spelled.lengths):
            rows = np.flatnonzero(spelled.lengths == length)
            for start in range(0, len(rows) if length else 0, ROWS):
                some = rows[start : start + ROWS]
                pieces = spelled.tokens[spelled.offsets[some][:, None] + np.arange(length)]
                for done, ids in self._segment_equal(pieces.astype(np.int64), dropout, random):
                    lengths[some[done]] = ids.shape[1]
                    parts.append((some[done], ids))
        offsets = offsets_of(lengths)
        tokens = np.empty(offsets[-1], np.int32)
        for rows, ids in parts:
            tokens[offsets[rows][:, None] + np.arange(ids.shape[1])] = ids
        return Ragged(tokens, offsets)

    def _segment_equal(
        self, pieces: Indices, dropout: float, random: np.random.Generator
    ) -> Iterator[tuple[Indices, Indices]]:
        """Segment words of equal length (N, L); yield rows that are done, and their ids."""
        rows = np.arange(len(pieces))
        ranks = self._rank(pieces[:, :-1], pieces[:, 1:])
        while len(rows) and pieces.shape[1] > 1:
            dropped = random.random(ranks.shape, np.float32) < dropout
            candidates = np.where(dropped, NEVER, ranks)
            best = candidates.argmin(axis=1)
            rank = np.take_along_axis(candidates, best[:, None], axis=1)[:, 0]
            goes_on = rank < NEVER
            yield rows[~goes_on], pieces[~goes_on]
            rows, best = rows[goes_on], best[goes_on]
            pieces, ranks = self._merge(
                pieces[goes_on], ranks[goes_on], best, self.results[rank[goes_on]]
            )
        yield rows, pieces

    def _merge(
        self, pieces: Indices, ranks: Indices, at: Indices, results: Indices
    ) -> tuple[Indices, Indices]:
        """Replace the pieces `at` and `at` + 1 of each word by one, and rank its new pairs."""
        n, length = pieces.shape
        row = np.arange(n)
        pieces[row, at] = results
        kept = np.arange(length) != at[:, None] + 1
        pieces = pieces[kept].reshape(n, length - 1)
        ranks = ranks[np.arange(length - 1) != at[:, None]].reshape(n, length - 2)
        for left in (at - 1, at):
            there = (left >= 0) & (left < length - 2)
            who, column = row[there], left[there]
            ranks[who, column] = self._rank(pieces[who, column], pieces[who, column + 1])
        return pieces, ranks

    def _rank(self, left: npt.NDArray[Any], right: npt.NDArray[Any]) -> Indices:
        """Return when the merge of two pieces was learned, NEVER where there is none."""
        pairs = left * self.size + right
        index = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        return np.where(self.pairs[index] == pairs, self.ranks[index], NEVER)
