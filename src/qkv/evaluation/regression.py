"""How good predicted numbers are: correlations and errors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qkv.evaluation.scores import Score, check_sizes

Floats = npt.NDArray[np.float64]


def regression_scores(outputs: npt.ArrayLike, references: npt.ArrayLike) -> list[Score]:
    """Correlations in percent, and errors in the numbers' own unit."""
    found, gold = (np.asarray(values, dtype=np.float64) for values in (outputs, references))
    check_sizes(found, gold)
    return [
        Score("Pearson", 100 * pearson(found, gold)),
        Score("Spearman", 100 * pearson(_ranks(found), _ranks(gold))),
        Score("mean squared error", float(np.square(found - gold).mean()), digits=4),
        Score("mean absolute error", float(np.abs(found - gold).mean()), digits=4),
    ]


def pearson(found: Floats, gold: Floats) -> float:
    """Linear correlation, from −1 to 1; 0 where one side is constant."""
    if np.ptp(found) == 0 or np.ptp(gold) == 0:
        return 0.0
    return float(np.clip(_direction(found) @ _direction(gold), -1, 1))


def _direction(values: Floats) -> Floats:
    deviations = values - values.mean()
    deviations /= np.abs(deviations).max()  # so that squares neither overflow nor underflow
    return deviations / np.sqrt(deviations @ deviations)


def _ranks(values: Floats) -> Floats:
    """Positions in order of size, from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.where(np.isnan(values), np.nan, ranks[inverse])
