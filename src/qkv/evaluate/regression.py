"""How good numbers are that a model gives to texts: correlations and errors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qkv.evaluate.classification import check_sizes
from qkv.evaluate.scores import Score

Floats = npt.NDArray[np.float64]


def regression_scores(found: npt.ArrayLike, gold: npt.ArrayLike) -> list[Score]:
    """All that we report of numbers: correlations in percent, errors in the numbers' own unit."""
    one, other = np.asarray(found, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    check_sizes(one, other)
    return [
        Score("Pearson", 100 * pearson(one, other)),
        Score("Spearman", 100 * spearman(one, other)),
        Score("mean squared error", float(np.square(one - other).mean()), digits=4),
        Score("mean absolute error", float(np.abs(one - other).mean()), digits=4),
    ]


def pearson(found: Floats, gold: Floats) -> float:
    """How straight a line the pairs lie on, from −1 to 1; 0 where one side is all the same."""
    if np.ptp(found) == 0 or np.ptp(gold) == 0:
        return 0.0
    return float(np.clip(_direction(found) @ _direction(gold), -1, 1))


def spearman(found: Floats, gold: Floats) -> float:
    """How alike the two orders are: Pearson's correlation of the ranks."""
    return pearson(_ranks(found), _ranks(gold))


def _direction(values: Floats) -> Floats:
    deviations = values - values.mean()
    deviations = (
        deviations / np.abs(deviations).max()
    )  # so that squares neither over- nor underflow
    return deviations / np.sqrt(deviations @ deviations)


def _ranks(values: Floats) -> Floats:
    """Places in order of size from 1 on; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.where(np.isnan(values), np.nan, ranks[inverse])
