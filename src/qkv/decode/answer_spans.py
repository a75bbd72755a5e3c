"""The best answer spans, from the start and end logits of each token.

A text longer than the model is read in windows, whose scores are compared directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class SpanScore:
    """One span of one window; its end is its last token."""

    window: int
    start: int
    end: int
    score: float  # start logit + end logit


def best_spans(
    start: Sequence[Tensor],
    end: Sequence[Tensor],
    allowed: Sequence[Tensor],
    n_best: int,
    max_tokens: int,
) -> list[SpanScore]:
    """Find the best spans of at most `max_tokens` tokens in all windows, best first.

    A window has logits (T,) and, in `allowed`, which tokens an answer may start and end at. Of
    equally good spans the earlier comes first. Overlapping windows may both find the same words.
    """
    if n_best < 1 or max_tokens < 1:
        raise ValueError(f"n_best {n_best} and max_tokens {max_tokens} must be at least 1")
    spans = [
        span
        for window, logits in enumerate(zip(start, end, allowed, strict=True))
        for span in _best_of_window(window, *logits, n_best, max_tokens)
    ]
    return sorted(spans, key=lambda span: -span.score)[:n_best]


def null_score(start: Sequence[Tensor], end: Sequence[Tensor]) -> float:
    """Score "no answer": start and end at the first token (CLS), as in SQuAD 2.0.

    The lowest of the windows counts, since windows without the answer rightly score it high.
    """
    ends = zip(start, end, strict=True)
    return min(float(first[0]) + float(last[0]) for first, last in ends)


def _best_of_window(
    window: int, start: Tensor, end: Tensor, allowed: Tensor, n_best: int, max_tokens: int
) -> list[SpanScore]:
    if not allowed.any():
        return []
    # Sums are made in float64, where those of float32 logits are exact and ties are real.
    start, end = (logits.cpu().double() for logits in (start, end))
    allowed = allowed.cpu()
    width = min(max_tokens, len(start))
    scores = start[:, None] + _ahead(end, width)  # (T, width): [i, k] is the span from i to i + k
    spans = (allowed[:, None] & _ahead(allowed, width)).nonzero()
    scores = scores[spans[:, 0], spans[:, 1]]
    # topk breaks ties arbitrarily: take all that are as good as its last, then the first of them.
    least = scores.topk(min(n_best, len(scores))).values[-1]
    spans, scores = spans[scores >= least], scores[scores >= least]
    order = scores.argsort(descending=True, stable=True)[:n_best]
    rows = zip(spans[order].tolist(), scores[order].tolist(), strict=True)
    return [SpanScore(window, first, first + more, score) for (first, more), score in rows]


def _ahead(values: Tensor, width: int) -> Tensor:
    """Return each value and those after it, (T, width); 0 beyond the end."""
    return F.pad(values, (0, width - 1)).unfold(0, width, 1)
