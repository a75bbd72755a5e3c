"""Overlapping windows over a text that is longer than a model: each is read on its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

Window = tuple[int, int]  # tokens [start, end)


def windows(
    n_tokens: int, size: int, overlap: int = 0, may_cut: Sequence[bool] | None = None
) -> list[Window]:
    """Windows of at most `size` tokens that cover all, and share `overlap` with the one before.

    They share half of them at most, so that each has much that is new. may_cut[i] says that a
    window may begin or end before token i. Where it may not, the window begins or ends earlier, and
    windows still overlap as much where words let them. Only words that are longer than a window are
    torn.
    """
    if n_tokens <= size:  # as most texts are
        return [(0, n_tokens)]
    before: Sequence[int] = range(n_tokens)
    if may_cut is not None:
        before = list(accumulate((i if cut else 0 for i, cut in enumerate(may_cut)), max))
    overlap = min(overlap, size // 2)
    cut = [(0, _end(0, size, before))]
    while cut[-1][1] < n_tokens:
        start = _next_start(cut[-1], size, overlap, before)
        cut.append((start, _end(start, size, before)))
    return cut


def most_central(windows: Sequence[Window], n_tokens: int) -> list[int]:
    """Return for each token the window with the most context on the token's nearer side.

    Of equally good windows the earlier one is taken.
    """
    context = np.full(n_tokens, -1)
    chosen = np.zeros(n_tokens, np.int64)
    for index, (start, end) in enumerate(windows):
        behind = np.arange(end - start)
        nearer = np.minimum(behind, behind[::-1])
        better = nearer > context[start:end]
        context[start:end][better] = nearer[better]
        chosen[start:end][better] = index
    return chosen.tolist()


def answer_place(window: Window, start: int, end: int) -> tuple[int, int] | None:
    """Return the positions in a window of two tokens, or None where one is outside of it."""
    first, beyond = window
    return (start - first, end - first) if first <= start and end < beyond else None


def _end(start: int, size: int, before: Sequence[int]) -> int:
    """Where the window from `start` ends; before[i] is the last place to cut at up to i."""
    limit = start + size
    if limit >= len(before):
        return len(before)
    return before[limit] if before[limit] > start else limit


def _next_start(window: Window, size: int, overlap: int, before: Sequence[int]) -> int:
    """Where the next window starts: at the first good place that takes it beyond this one."""
    start, end = window
    # A window that ends early takes the next one along, so that they overlap as much as others.
    target = max(end - overlap, start + 1)
    for token in range(max(before[target], start + 1), end + 1):
        if before[token] == token and _end(token, size, before) > end:
            return token
    return target  # the window ends within a word that is longer than it
