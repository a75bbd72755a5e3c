"""Sampling rules: pure functions on logits (…, V) that hide the tokens that may not be drawn.

Each agrees with the warper of the same name in `transformers`, and so does their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

HIDDEN = float("-inf")


def temperature(logits: Tensor, value: float) -> Tensor:
    """Below 1 the likely tokens become likelier still, above 1 the draw is more even."""
    return logits / value


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k likeliest tokens, and any that tie with the last of them."""
    least = logits.topk(min(k, logits.shape[-1])).values[..., -1:]
    return logits.masked_fill(logits < least, HIDDEN)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of the likeliest tokens whose probabilities reach p."""
    ascending, order = logits.sort(dim=-1)
    tail = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - p
    tail[..., -1] = False  # the likeliest token stays, whatever p is
    return logits.masked_fill(torch.zeros_like(tail).scatter(-1, order, tail), HIDDEN)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keep the tokens that are at least p times as likely as the likeliest."""
    probabilities = logits.softmax(dim=-1)
    likeliest = probabilities.amax(dim=-1, keepdim=True)
    return logits.masked_fill(probabilities < p * likeliest, HIDDEN)


def repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Make tokens that were seen (…, V) less likely: positive logits are divided, others times."""
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def suppress(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Hide these tokens, in place."""
    for token in tokens:  # few; one fill each needs no index tensor, which a graph could not make
        logits[..., token] = HIDDEN
    return logits
