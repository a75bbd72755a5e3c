"""Logits processors: functions on logits (…, V) that mask tokens or change their probabilities.

Each equals its counterpart in `transformers`, and so does their order. Values may differ from row
to row: `RowRules` (row_rules.py) holds those of the rows of a running batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

HIDDEN = float("-inf")


def temperature(logits: Tensor, value: float | Tensor) -> Tensor:
    """Divide logits by a temperature: below 1 sharpens the distribution, above 1 flattens it."""
    return logits / value


def top_k(logits: Tensor, k: int | Tensor, most: int = 0) -> Tensor:
    """Keep the k likeliest tokens, and ties with the last of them.

    Where k is a tensor (…, 1), a k of 0 keeps all, and none is larger than `most`.
    """
    if isinstance(k, int):
        least = logits.topk(min(k, logits.shape[-1])).values[..., -1:]
        return logits.masked_fill(logits < least, HIDDEN)
    best = logits.topk(min(most, logits.shape[-1])).values
    least = best.gather(-1, (k - 1).clamp(0, best.shape[-1] - 1))
    return logits.masked_fill((logits < least) & (k > 0), HIDDEN)


def top_p(logits: Tensor, p: float | Tensor) -> Tensor:
    """Keep the smallest set of the likeliest tokens whose probabilities reach p."""
    ascending, order = logits.sort(dim=-1)
    tail = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - p
    if isinstance(p, Tensor):
        tail &= p < 1
    tail[..., -1] = False  # the likeliest token always stays
    return logits.masked_fill(torch.zeros_like(tail).scatter(-1, order, tail), HIDDEN)


def min_p(logits: Tensor, p: float | Tensor) -> Tensor:
    """Keep the tokens that are at least p times as likely as the likeliest."""
    probabilities = logits.softmax(dim=-1)
    likeliest = probabilities.amax(dim=-1, keepdim=True)
    return logits.masked_fill(probabilities < p * likeliest, HIDDEN)


def repetition(logits: Tensor, seen: Tensor, penalty: float | Tensor) -> Tensor:
    """Penalise seen tokens (…, V): positive logits are divided, negative ones multiplied."""
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def no_repeat(logits: Tensor, past: Tensor, n: int) -> Tensor:
    """Mask tokens that would repeat an n-gram of the past (…, L); -1 is no token."""
    if past.shape[-1] < n:
        return logits
    last = past[..., n - 1 :]  # the last token of each n-gram, masked if those before it occur now
    again = last >= 0
    for back in range(1, n):
        again = again & (past[..., n - 1 - back : -back] == past[..., -back, None])
    size = logits.shape[-1]
    # One more column takes the n-grams that do not match, so that no shape depends on values.
    banned = logits.new_zeros((*logits.shape[:-1], size + 1), dtype=torch.bool)
    banned = banned.scatter(-1, last.masked_fill(~again, size), True)
    return logits.masked_fill(banned[..., :size], HIDDEN)
