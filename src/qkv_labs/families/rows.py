"""How a decoder alone reads a pair in lab 17: one row, its source seen one way or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.model import Attend, Mask, fast
from qkv_labs.shared import EncodedPairs
from qkv_labs.tools import IGNORE, padded


@dataclass(frozen=True)
class Joined:
    """Source, separator and target in one row; labels at the target's positions only."""

    tokens: Tensor  # (B, T): x₁ … x_n, BOS, y₁ … y_m
    labels: Tensor  # (B, T): IGNORE n times, y₁ … y_m, EOS
    source_lengths: Tensor  # (B,)


def joined(pairs: EncodedPairs, indices: Sequence[int], config: ModelConfig) -> Joined:
    """Lay pairs in rows as a decoder alone reads them, separated by BOS."""
    chosen = [(pairs.sources[index], pairs.targets[index]) for index in indices]
    tokens = [[*source, config.bos_id, *target] for source, target in chosen]
    labels = [[*[IGNORE] * len(source), *target, config.eos_id] for source, target in chosen]
    lengths = torch.tensor([len(source) for source, _ in chosen])
    return Joined(padded(tokens, config.pad_id), padded(labels, IGNORE), lengths)


def prefix_mask(source_lengths: Tensor, n_tokens: int) -> Mask:
    """Let source tokens see one another both ways, and all others what is before them."""
    position = torch.arange(n_tokens)
    source = position < source_lengths[:, None]  # (B, T)
    visible = (position <= position[:, None]) | (source[:, :, None] & source[:, None, :])
    # `first` says that the rows differ, so that kernels read what is drawn.
    first = torch.zeros(len(source_lengths), 1, dtype=torch.int64)
    return Mask(causal=True, first=first, drawn=visible[:, None])


def seeing(drawn: Mask) -> Attend:
    """Return a path that attends under this mask instead of the stack's."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, mask: Mask, *rest: Any, **options: Any
    ) -> Tensor:
        return fast(query, key, value, drawn, *rest, **options)

    return attend


def reading(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, *rest: Any, **options: Any
) -> Tensor:
    """Attend while decoding: sources, which come many tokens at once, are seen both ways."""
    if query.shape[-2] > 1:
        mask = Mask(first=mask.first)
    return fast(query, key, value, mask, *rest, **options)
