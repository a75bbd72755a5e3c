"""Masked language modelling: tokens, words or spans of passages are masked and predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from qkv.config import MaskConfig
from qkv.data.batch import IGNORE, Batch, Packing, Specials, arrange, round_up
from qkv.data.corpus.tokens import Tokens
from qkv.data.items.base import Draw, DrawnItems
from qkv.data.items.passages import Drawn, Passages
from qkv.data.ragged import Indices, Ragged, offsets_of, spread
from qkv.errors import UserError
from qkv.text import Tokenizer, Vocabulary

Ids = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Masked:
    """Sequences in which some tokens are masked, and the original tokens."""

    tokens: Ids
    """End to end, as in the `Ragged` that they come from."""
    positions: Indices
    """(K,), increasing: which of `tokens` are to be predicted."""
    labels: Indices
    """(K,): the original tokens, even where they were left unchanged."""


@dataclass(frozen=True, eq=False)
class Masker:
    """Masks round(share·n) of the n ordinary tokens of each sequence, and at least one.

    Whole words and spans never mask more than that. They mask fewer where no further word fits,
    and single tokens where not even the shortest word does.
    """

    config: MaskConfig
    mask_id: int
    special: Flags
    """(V,): ids that are never masked and never drawn as random tokens."""
    word_starts: Callable[[Ids], Flags]
    """Which tokens of a sequence start a word."""

    @classmethod
    def of(cls, config: MaskConfig, tokenizer: Tokenizer, vocabulary: Vocabulary) -> Masker:
        """Mask the tokens of a tokenizer, whose vocabulary tells where words begin."""
        return cls(config, tokenizer.mask_id, vocabulary.special, vocabulary.word_starts)

    def __call__(self, sequences: Ragged, random: np.random.Generator) -> Masked:
        """Choose tokens and replace them by the mask token, a random one, or themselves."""
        words = self._words(sequences)
        if self.config.units == "span":
            span = np.repeat(_draw_spans(words, self.config, random), words.sizes)
            hidden = span >= 0
            chance = random.random(span.max(initial=-1) + 1)[span[hidden]]  # one way for a span
        else:
            hidden = np.repeat(_draw_words(words, random), words.sizes)
            chance = random.random(int(hidden.sum()))
        positions = words.positions[hidden]
        tokens = sequences.tokens.copy()
        labels = tokens[positions].astype(np.int64)
        tokens[positions] = self._replaced(tokens[positions], chance, random)
        return Masked(tokens, positions, labels)

    def _replaced(
        self, tokens: Ids, chance: npt.NDArray[np.float64], random: np.random.Generator
    ) -> Ids:
        drawn = self._ordinary[random.integers(len(self._ordinary), size=len(tokens))]
        shown = np.where(chance < self.config.random, drawn, tokens)
        return np.where(chance < self.config.random + self.config.kept, shown, self.mask_id)

    @cached_property
    def _ordinary(self) -> Ids:
        return np.flatnonzero(~self.special).astype(np.int32)

    def _words(self, sequences: Ragged) -> _Words:
        """Cut what may be masked into words, or into tokens."""
        positions = np.flatnonzero(~self.special[sequences.tokens])
        owner = np.repeat(np.arange(len(sequences)), sequences.lengths)[positions]
        n_ordinary = np.bincount(owner, minlength=len(sequences))
        budget = np.maximum(np.rint(self.config.share * n_ordinary), n_ordinary > 0)
        apart = (np.diff(positions, prepend=-2) > 1) | (np.diff(owner, prepend=-1) > 0)
        starts = np.ones(len(positions), np.bool_)
        if self.config.units != "token":
            starts = self.word_starts(sequences.tokens)[positions] | apart
            sizes = _sizes(starts)
            shortest = np.full(len(sequences), len(positions))
            np.minimum.at(shortest, owner[starts], sizes)
            starts |= (shortest > budget)[owner]
        return _Words(
            positions, _sizes(starts), owner[starts], apart[starts], budget.astype(np.int64)
        )


def most_masked(n_tokens: int, n_sequences: int, share: float) -> int:
    """Return the largest number of tokens masked in sequences of `n_tokens` together."""
    return min(n_tokens, int(share * n_tokens) + n_sequences)  # max(1, round(x)) ≤ x + 1


@dataclass(frozen=True, eq=False)
class _Words:
    """The words of several sequences, in order."""

    positions: Indices
    """Of all their tokens."""
    sizes: Indices
    """Tokens in each word."""
    owner: Indices
    """Index of the sequence that each is in."""
    apart: Flags
    """Whether a word comes first in its sequence, or after a special token."""
    budget: Indices
    """For each sequence: how many tokens to mask."""


def _draw_words(words: _Words, random: np.random.Generator) -> Flags:
    """Take words in random order, each that still fits the budget."""
    hidden = np.zeros(len(words.sizes), np.bool_)
    room = words.budget.copy()
    waiting = np.argsort(words.owner + random.random(len(words.owner)))
    while len(waiting := waiting[words.sizes[waiting] <= room[words.owner[waiting]]]):
        owner, sizes = words.owner[waiting], words.sizes[waiting]
        # Those in a row that fit in together; what comes after them is looked at again.
        fits = _running_sums(sizes, owner) <= room[owner]
        hidden[waiting[fits]] = True
        room -= np.bincount(owner[fits], sizes[fits], len(room)).astype(np.int64)
        waiting = waiting[~fits]
    return hidden


def _draw_spans(words: _Words, config: MaskConfig, random: np.random.Generator) -> Indices:
    """Number spans of words from random ones on (Joshi et al. 2020, 3.1), -1 where there is none.

    In each round each sequence has one more, cut where it would meet another or the budget's end.
    """
    spans = np.full(len(words.sizes), -1)
    room = words.budget.copy()
    n_spans = 0
    shares = (1 - 1 / config.span_length) ** np.arange(config.longest_span)
    while len(free := np.flatnonzero((spans < 0) & (words.sizes <= room[words.owner]))):
        first = np.flatnonzero(np.diff(words.owner[free], prepend=-1))
        counts = np.diff(first, append=len(free))
        starts = free[first + (random.random(len(first)) * counts).astype(np.int64)]
        lengths = 1 + random.choice(len(shares), len(first), p=shares / shares.sum())
        chosen, number = _extended(words, starts, lengths, spans < 0, room)
        spans[chosen] = n_spans + number
        n_spans += len(first)
        used = np.bincount(words.owner[chosen], words.sizes[chosen], len(room))
        room -= used.astype(np.int64)
    return spans


def _extended(
    words: _Words, starts: Indices, lengths: Indices, free: Flags, room: Indices
) -> tuple[Indices, Indices]:
    """Take up to `lengths` words from `starts` on; return them and the start each belongs to."""
    step = np.arange(lengths.max())
    number = np.minimum(starts[:, None] + step, len(free) - 1)
    inside = (starts[:, None] + step < len(free)) & (step < lengths[:, None]) & free[number]
    inside &= (step == 0) | ~words.apart[number]
    inside &= np.cumsum(words.sizes[number], axis=1) <= room[words.owner[starts]][:, None]
    inside = np.logical_and.accumulate(inside, axis=1)
    return number[inside], np.nonzero(inside)[0]


def _sizes(starts: Flags) -> Indices:
    return np.diff(np.flatnonzero(starts), append=len(starts))


def _running_sums(values: Indices, owner: Indices) -> Indices:
    """Sums up to each value, from the first of the same owner on."""
    sums = np.cumsum(values)
    begins = np.diff(owner, prepend=-1) > 0
    return sums - np.maximum.accumulate(np.where(begins, sums - values, 0))


class MaskedItems(DrawnItems):
    """Passages of a corpus, masked anew in each batch."""

    def __init__(self, passages: Passages, masker: Masker) -> None:
        super().__init__(passages.target_sizes, passages.tokens.digest)
        self.passages, self.masker = passages, masker

    @classmethod
    def of(
        cls,
        tokens: Tokens,
        special: Specials,
        vocabulary: Vocabulary,
        masker: Masker,
        length: int,
        separators: int,
        what: str = "the text",
    ) -> MaskedItems:
        """Cut a text into passages, and refuse one in which nothing can be predicted."""
        if vocabulary.special[tokens.read(0, min(len(tokens), 200_000))].all():
            raise UserError(
                f"data: {what} has no tokens that could be masked and predicted; give other text, "
                f"or a tokenizer that knows its characters."
            )
        pairs = masker.config.pairs
        passages = Passages(tokens, special, vocabulary, length, pairs, separators, what)
        return cls(passages, masker)

    @staticmethod
    def least_length(config: MaskConfig, separators: int) -> int:
        """Return the tokens of the shortest sequence that holds text, or each text of a pair."""
        return 3 if config.pairs == "none" else 4 + separators

    def share(self, items: Indices, rows: Indices, draw: Draw, shape: Packing) -> Batch:
        """Draw pairs and masks for a whole batch, and lay out some rows of it."""
        random = draw.random()
        drawn = self.passages.draw(items, random)
        masked = self.masker(drawn.sequences, random)
        if len(rows) < len(drawn.sequences):
            drawn, masked = _rows_of(drawn, masked, rows)
        placement, offsets = arrange(drawn.sequences.lengths, shape), drawn.sequences.offsets
        flat = placement.write(Ragged(masked.tokens, offsets), self.passages.special.pad)
        batch = Batch(
            None,
            placement.side(flat, drawn.segments),
            torch.from_numpy(masked.labels),
            len(masked.labels),
            torch.from_numpy(placement.positions(offsets)[masked.positions]),
            None if drawn.pairs is None else torch.from_numpy(drawn.pairs),
        )
        if shape is None:
            return batch
        assert batch.positions is not None
        most = most_masked(shape.target_tokens, shape.capacity, self.masker.config.share)
        return replace(
            batch,
            positions=_padded(batch.positions, round_up(most, 8), 0),
            labels=_padded(batch.labels, round_up(most, 8), IGNORE),
            pairs=None if batch.pairs is None else _padded(batch.pairs, shape.sequences, IGNORE),
        )


def _rows_of(drawn: Drawn, masked: Masked, rows: Indices) -> tuple[Drawn, Masked]:
    """Take some sequences, with their masks and pairs."""
    offsets = drawn.sequences.offsets
    # The new index of each token that is taken, and -1 of all others.
    kept = spread(offsets[rows], offsets_of(drawn.sequences.lengths[rows]))
    moved = np.full(len(masked.tokens), -1)
    moved[kept] = np.arange(len(kept))
    positions = moved[masked.positions]
    order = np.argsort(positions, kind="stable")[int((positions < 0).sum()) :]
    taken = Drawn(
        drawn.sequences.take(rows),
        None if drawn.segments is None else drawn.segments.take(rows),
        None if drawn.pairs is None else drawn.pairs[rows],
    )
    return taken, Masked(masked.tokens[kept], positions[order], masked.labels[order])


def _padded(values: torch.Tensor, size: int, fill: int) -> torch.Tensor:
    if len(values) > size:
        raise ValueError(f"{len(values)} values overflow {size}")
    return F.pad(values, (0, size - len(values)), value=fill)
