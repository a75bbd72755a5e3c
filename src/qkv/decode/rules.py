"""Rules: functions on logits (…, V) that hide the tokens that may not come, or make some unlikely.

Each agrees with the one of the same purpose in `transformers`, and so does their order.
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


def no_repeat(logits: Tensor, past: Tensor, n: int) -> Tensor:
    """Hide tokens after which a run of n would be in the past (…, L) twice; -1 is no token."""
    if past.shape[-1] < n:
        return logits
    last = past[..., n - 1 :]  # the last token of each run, to avoid if those before it recur now
    again = last >= 0
    for back in range(1, n):
        again = again & (past[..., n - 1 - back : -back] == past[..., -back, None])
    size = logits.shape[-1]
    # one column more, where runs that do not recur are marked: no shape depends on what is found
    banned = logits.new_zeros((*logits.shape[:-1], size + 1), dtype=torch.bool)
    banned = banned.scatter(-1, last.masked_fill(~again, size), True)
    return logits.masked_fill(banned[..., :size], HIDDEN)


def hold_back(logits: Tensor, tokens: Sequence[int], early: Tensor) -> Tensor:
    """Hide these tokens, in place, as long as it is early: () bool; an id may be of no token."""
    for token in tokens:
        if token < logits.shape[-1]:
            logits[..., token].masked_fill_(early, HIDDEN)
    return logits


def force(logits: Tensor, token: int, rows: Tensor) -> Tensor:
    """Let nothing but this token come where rows, (…) bool, say so; its id may be of no token."""
    if token >= logits.shape[-1]:
        return logits
    only = torch.full_like(logits, HIDDEN)
    only[..., token] = 0.0
    return torch.where(rows[..., None], only, logits)


def suppress(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Hide these tokens, in place."""
    for token in tokens:  # few; one fill each needs no index tensor, which a graph could not make
        logits[..., token] = HIDDEN
    return logits
