"""How a decoder alone reads a translation in lab 17: one row, its source seen one way or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.data import IGNORE, EncodedPairs, Specials
from qkv.model import Mask, fast
from qkv.model.attention import Attend


@dataclass(frozen=True)
class Joined:
    """Source, separator and target in one row; labels at the target's places only."""

    tokens: Tensor  # (B, T): x₁ … x_n, BOS, y₁ … y_m
    labels: Tensor  # (B, T): IGNORE n times, y₁ … y_m, EOS
    source_lengths: Tensor  # (B,)


def joined(pairs: EncodedPairs, indices: Sequence[int], special: Specials) -> Joined:
    """Lay pairs in rows as a decoder alone reads them; BOS separates."""
    sources = [pairs.source[index].tolist() for index in indices]
    targets = [pairs.target[index].tolist() for index in indices]
    rows = [[*x, special.bos, *y] for x, y in zip(sources, targets, strict=True)]
    width = max(map(len, rows))
    tokens = torch.full((len(rows), width), special.pad)
    labels = torch.full((len(rows), width), IGNORE)
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        tokens[row, : len(rows[row])] = torch.tensor(rows[row])
        labels[row, len(source) : len(rows[row])] = torch.tensor([*target, special.eos])
    return Joined(tokens, labels, torch.tensor([len(source) for source in sources]))


def prefix_mask(source_lengths: Tensor, n_tokens: int) -> Mask:
    """Source tokens see one another both ways; all others see what is before them."""
    place = torch.arange(n_tokens)
    source = place < source_lengths[:, None]  # (B, T)
    visible = (place <= place[:, None]) | (source[:, :, None] & source[:, None, :])
    # `first` says that the rows differ, so that kernels read what is drawn.
    first = torch.zeros(len(source_lengths), 1, dtype=torch.int64)
    return Mask(causal=True, first=first, drawn=visible[:, None])


def seeing(drawn: Mask) -> Attend:
    """Attention under this mask, whatever the stack asks for."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        scale: float,
        bias: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        return fast(query, key, value, drawn, scale, bias, dropout)

    return attend


def reading(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    scale: float,
    bias: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention while decoding: sources, which come many tokens at once, are seen both ways."""
    if query.shape[-2] > 1:
        mask = Mask(first=mask.first)
    return fast(query, key, value, mask, scale, bias, dropout)
