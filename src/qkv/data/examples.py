"""Conversations as token ids, and their batches: the loss is taken on the answers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from qkv.data.batch import IGNORE, Batch, PackedShape, Places, Specials, in_rows, in_segments
from qkv.data.encoded import Indices, Ragged, spread
from qkv.data.order import validation_plan
from qkv.data.stream import SizedStream
from qkv.errors import UserError
from qkv.text import ChatTemplate, Message, Tokenizer


@dataclass(frozen=True, eq=False)
class Examples:
    """Whole sequences of token ids, with BOS and EOS where they belong."""

    tokens: Ragged
    counts: npt.NDArray[np.bool_]
    """For each of `tokens.tokens`: whether it is to be learnt, as a part of an answer."""

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.tokens.tokens):
            raise ValueError(f"{len(self.tokens.tokens)} tokens but {len(self.counts)} flags")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def source_sizes(self) -> npt.NDArray[np.int64]:
        """A decoder that stands alone has no sources."""
        return np.zeros(len(self), np.int64)

    @property
    def target_sizes(self) -> npt.NDArray[np.int64]:
        """Places that each example takes in a batch: the last token is a label only."""
        return self.tokens.lengths - 1

    @property
    def n_labels(self) -> npt.NDArray[np.int64]:
        """How many tokens of each example are learnt; the first is never a label."""
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])
        starts, ends = self.tokens.offsets[:-1], self.tokens.offsets[1:]
        return before[ends] - before[np.minimum(starts + 1, ends)]

    def take(self, indices: Sequence[int] | Indices) -> Examples:
        """Copy out some of the examples, in the order asked for."""
        flags = Ragged(self.counts.astype(np.int32), self.tokens.offsets).take(indices)
        return Examples(self.tokens.take(indices), flags.tokens.astype(bool))


def encode_examples(
    conversations: Sequence[Sequence[Message]],
    template: ChatTemplate,
    tokenizer: Tokenizer,
    bos: bool,
) -> Examples:
    """Write conversations as the template says and turn them into tokens."""
    encoded = template.encode_many(conversations, tokenizer, bos)
    tokens = Ragged.of([conversation.tokens for conversation in encoded])
    flags = chain.from_iterable(conversation.answer for conversation in encoded)
    return Examples(tokens, np.fromiter(flags, np.bool_, len(tokens.tokens)))


def kept_examples(examples: Examples, max_length: int) -> tuple[Indices, str]:
    """Find the examples that have an answer and are not too long, and say how many were dropped."""
    unanswered = examples.n_labels == 0
    too_long = ~unanswered & (examples.tokens.lengths > max_length)
    kept = np.flatnonzero(~unanswered & ~too_long)
    reasons = {
        "without an answer": int(unanswered.sum()),
        f"too long (over {max_length} tokens)": int(too_long.sum()),
    }
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
    if not len(kept):
        raise UserError(
            f"data: all {len(examples):,} records were dropped ({dropped}); correct the records, "
            f"or raise max_length under [data]."
        )
    if not dropped:
        return kept, f"kept all {len(examples):,} records"
    return kept, f"kept {len(kept):,} of {len(examples):,} records; dropped {dropped}"


class ExampleStream(SizedStream[Examples]):
    """Endless batches of examples, from any step on."""

    def assemble(self, indices: Indices, place: tuple[int, int]) -> Batch:
        """Lay out the examples of one batch."""
        if self.shape:
            return packed_examples(self.items, indices, self.special, self.shape)
        return padded_examples(self.items, indices, self.special)


def example_batches(examples: Examples, batch_tokens: int, special: Specials) -> list[Batch]:
    """Padded batches of all examples, short ones first, always the same."""
    plan = validation_plan(examples, batch_tokens)
    return [padded_examples(examples, indices, special) for indices in plan]


def padded_examples(
    examples: Examples, indices: Sequence[int] | Indices, special: Specials, multiple: int = 1
) -> Batch:
    """Lay one example a row and pad to the longest, rounded up to a multiple."""
    chosen = examples.take(indices)
    return _batch(chosen, in_rows(chosen.target_sizes, multiple), special)


def packed_examples(
    examples: Examples, indices: Sequence[int] | Indices, special: Specials, shape: PackedShape
) -> Batch:
    """Lay examples end to end, each a segment of its own."""
    chosen = examples.take(indices)
    return _batch(chosen, in_segments(chosen.target_sizes, shape.target_tokens, shape), special)


def _batch(chosen: Examples, layout: Places, special: Specials) -> Batch:
    """Write all tokens but the last as input and, one place ahead, those that count as labels."""
    offsets = chosen.tokens.offsets
    places = spread(layout.starts, offsets - np.arange(len(offsets)))
    learnt = np.where(chosen.counts, chosen.tokens.tokens, IGNORE)
    inputs = np.full(layout.shape, special.pad, np.int64)
    labels = np.full(layout.shape, IGNORE, np.int64)
    inputs.flat[places] = np.delete(chosen.tokens.tokens, offsets[1:] - 1)
    labels.flat[places] = np.delete(learnt, offsets[:-1])
    return Batch(
        None,
        layout.side(torch.from_numpy(inputs)),
        torch.from_numpy(labels),
        int(chosen.n_labels.sum()),
    )
