"""Preference tuning by DPO (Rafailov et al. 2023): pairs of answers in, better answers out.

The model learns to find chosen answers likelier than rejected ones, as measured against what it
found before training. No second model is needed: what it found is computed once, at the start.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from qkv.batching import batches
from qkv.data import Preference, PreferenceItems, Splits, encode_conversations, read_preferences
from qkv.device import mixed_precision
from qkv.errors import UserError
from qkv.evaluation import Score
from qkv.evaluation.preferences import pair_log_probabilities, preferred
from qkv.run.instruct import ChatJob


class PreferJob(ChatJob[Preference]):
    """The job of `task = "prefer"`."""

    train_items: PreferenceItems
    valid_items: PreferenceItems
    test_items: PreferenceItems

    def read_splits(self) -> Splits[Preference]:
        """Read pairs of answers; all to one prompt are in the same split."""
        if self.start is None:
            raise UserError(
                "task = 'prefer' changes a model that answers already; name it with "
                "train.start_from."
            )
        return self.split(read_preferences, key=_prompt)

    def texts(self) -> Iterable[str]:
        """Yield all messages; a vocabulary is never learned from them, since there is a start."""
        return (turn["content"] for pair in self.splits.train for turn in pair.chosen)

    def make_items(self) -> None:
        """Encode all splits now, while the model is what it was before training."""
        super().make_items()
        if self.has("test"):
            self.test_items = self.encode("test")

    def encode(self, split: str) -> PreferenceItems:
        """Encode both conversations of each pair, and note how likely the model finds them now."""
        both = [messages for pair in self.examples(split) for messages in pair]
        conversations = encode_conversations(
            both, self.template, self.tokenizer, self.special, self.bos
        )
        items, sentence = PreferenceItems(conversations).no_longer_than(self.max_length())
        self.say(f"{split}: {sentence}")
        items.reference = self._log_probabilities(items)
        if split == "valid":
            share = preferred(items.reference).value
            self.say(f"before: {share:.1f} % of the chosen answers are likelier than the rejected")
        return items

    def baseline(self) -> float:
        """Return the loss of a model that prefers nothing."""
        return math.log(2)

    def scores(self, split: str) -> list[Score]:
        """Compare chosen and rejected answers, and by how much their likelihoods have changed."""
        items = self.valid_items if split == "valid" else self.test_items
        assert items.reference is not None
        now = self._log_probabilities(items)
        ratios = (now - items.reference).mean(axis=0)
        return [
            preferred(now),
            Score("log-ratio of chosen", float(ratios[0])),
            Score("log-ratio of rejected", float(ratios[1])),
        ]

    def _log_probabilities(self, items: PreferenceItems) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Compute log P of the chosen and the rejected answers, (N, 2)."""
        own = self.workers.share(batches(items.target_sizes.tolist(), self.valid_tokens))
        with mixed_precision(self.recipe.train, self.device):
            table = pair_log_probabilities(self.model, items, own, self.device)
        return np.sum(self.workers.gather(table), axis=0)


def _prompt(pair: Preference) -> Hashable:
    return tuple((message["role"], message["content"]) for message in pair.chosen[:-1])
