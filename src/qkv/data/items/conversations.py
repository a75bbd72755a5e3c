"""Conversations as token ids; the loss is taken on the answers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.data.batch import IGNORE, Batch, Packing, Specials, arrange
from qkv.data.corpus.shards import cached_examples
from qkv.data.items.base import VALIDATION, Draw, FilteredItems
from qkv.data.ragged import Indices, Ragged, offsets_of
from qkv.text import ChatTemplate, Message, Tokenizer


class ConversationItems(FilteredItems):
    """Whole conversations with BOS and EOS; `learned` marks the tokens of answers."""

    def __init__(
        self, tokens: Ragged, learned: npt.NDArray[np.bool_], special: Specials, digest: str = ""
    ) -> None:
        super().__init__(tokens.lengths - 1, digest)  # the last token is a label only
        self.tokens, self.learned, self.special = tokens, learned, special

    def batch(self, indices: Indices, draw: Draw = VALIDATION, shape: Packing = None) -> Batch:
        """Write all tokens but the last as input and, one position ahead, answers as labels."""
        rows = self.rows[np.asarray(indices, np.int64)]
        tokens = self.tokens.take(rows)
        learned = Ragged(self.learned, self.tokens.offsets).take(rows).tokens
        placement, offsets = arrange(tokens.lengths - 1, shape), tokens.offsets
        shorter = offsets - np.arange(len(offsets))
        inputs = Ragged(np.delete(tokens.tokens, offsets[1:] - 1), shorter)
        answers = np.where(learned, tokens.tokens, IGNORE)
        labels = placement.write(Ragged(np.delete(answers, offsets[:-1]), shorter), IGNORE)
        side = placement.side(placement.write(inputs, self.special.pad))
        return Batch(None, side, placement.tensor(labels), int((labels != IGNORE).sum()))

    def label_counts(self) -> npt.NDArray[np.int64]:
        """Count how often each token is a label."""
        return np.bincount(self.tokens.tokens[self.learned])


def encode_conversations(
    conversations: Sequence[Sequence[Message]],
    template: ChatTemplate,
    tokenizer: Tokenizer,
    special: Specials,
    bos: bool,
) -> ConversationItems:
    """Write conversations as the template says and encode them; ids are kept in the cache."""

    def encode(some: Sequence[Sequence[Message]]) -> Mapping[str, npt.NDArray[Any]]:
        encoded = template.encode_many(some, tokenizer, bos)
        tokens = Ragged.of([conversation.tokens for conversation in encoded])
        flags = chain.from_iterable(conversation.answer for conversation in encoded)
        learned = np.fromiter(flags, np.bool_, len(tokens.tokens))
        return {**tokens.arrays("tokens"), "learned": learned}

    key = ["conversations", tokenizer.digest, template.to_dict(), bos]
    shards = cached_examples(conversations, key, encode)
    return ConversationItems(shards.ragged("tokens"), shards["learned"], special, shards.digest)


def filter_conversations(
    items: ConversationItems, max_length: int
) -> tuple[ConversationItems, str]:
    """Drop conversations without an answer and those that are too long; say how many."""
    lengths = items.tokens.lengths
    before = offsets_of(items.learned)
    starts, ends = items.tokens.offsets[:-1], items.tokens.offsets[1:]
    n_labels = before[ends] - before[np.minimum(starts + 1, ends)]  # the first is never a label
    reasons = {
        "without an answer": n_labels == 0,
        f"too long (over {max_length} tokens)": lengths > max_length,
    }
    return items.keep(reasons, "records", "max_length")
