"""Preferences as token ids: a chosen and a rejected conversation, one under the other."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from qkv.data.batch import Batch, Packing
from qkv.data.items.base import VALIDATION, Draw, FilteredItems
from qkv.data.items.conversations import ConversationItems
from qkv.data.ragged import Indices


class PreferenceItems(FilteredItems):
    """Pairs of conversations: in rows 2i the chosen ones, in rows 2i + 1 the rejected ones.

    `reference` has the log-probabilities of both by the model before training, (N, 2).
    """

    has_one_shape = False  # answers of pairs of one size may have different lengths

    def __init__(self, conversations: ConversationItems) -> None:
        lengths = conversations.target_sizes.reshape(-1, 2)
        super().__init__(2 * lengths.max(axis=1), conversations.digest)
        self.conversations = conversations
        self.reference: npt.NDArray[np.float32] | None = None

    def batch(self, indices: Indices, draw: Draw = VALIDATION, shape: Packing = None) -> Batch:
        """Lay out both conversations of each pair; a pair counts as one label."""
        chosen = np.asarray(indices, np.int64)
        rows = (2 * self.rows[chosen, None] + np.arange(2)).ravel()
        batch = self.conversations.batch(rows)
        known = None if self.reference is None else torch.from_numpy(self.reference[chosen])
        return dataclasses.replace(batch, n_labels=len(chosen), opinions=known)

    def no_longer_than(self, max_length: int) -> tuple[PreferenceItems, str]:
        """Drop pairs of which one is too long; say how many."""
        too_long = self.target_sizes // 2 >= max_length  # the last token of each is a label only
        reasons = {f"too long (over {max_length} tokens)": too_long}
        return self.keep(reasons, "records", "max_length")
