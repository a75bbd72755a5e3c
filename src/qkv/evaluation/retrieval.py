"""How good text embeddings are: whether a text finds its partner, and how evenly texts spread."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from qkv.evaluation.scores import Score

ROWS = 1024  # texts that are compared with all others at a time


def retrieval_scores(
    first: Tensor, second: Tensor, pairs: Sequence[tuple[int, int]]
) -> list[Score]:
    """Accuracy and mean reciprocal rank of finding each pair's second text by its first.

    `first` (N, D) and `second` (M, D) are unit vectors of different texts, `pairs` their indices. A
    text's other partners are no rivals. Rivals that are just as near count as nearer, or a model to
    which all texts are the same would always be right.
    """
    partners: dict[int, list[int]] = defaultdict(list)
    for index, partner in pairs:
        partners[index].append(partner)
    rows, own = torch.tensor(pairs).T
    ranks: list[int] = []
    for part, cosines in _cosines(first[rows], second):
        of_partner = cosines.gather(1, own[part, None])
        for row, index in enumerate(rows[part].tolist()):
            cosines[row, partners[index]] = -math.inf
        ranks += (1 + (cosines >= of_partner).sum(dim=1)).tolist()
    return [
        Score("accuracy", 100 * ranks.count(1) / len(ranks), f"of {len(pairs):,} pairs"),
        Score("mean reciprocal rank", sum(1 / rank for rank in ranks) / len(ranks), digits=4),
    ]


def uniformity(vectors: Tensor) -> Score:
    """Log of the mean of exp(-2·distance²) over pairs of unit vectors (Wang & Isola 2020)."""
    total, count = 0.0, len(vectors) * (len(vectors) - 1)
    for part, cosines in _cosines(vectors, vectors):
        values = (4 * (cosines.double() - 1)).exp()
        total += float(values.sum() - values[:, part].diagonal().sum())
    value = math.log(total / count) if count else 0.0
    return Score("uniformity", value, "lower is better", digits=3)


def _cosines(rows: Tensor, columns: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The products of some rows with all columns, (R, M), in bounded memory."""
    for start in range(0, len(rows), ROWS):
        part = slice(start, start + ROWS)
        yield part, rows[part] @ columns.T
