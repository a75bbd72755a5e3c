"""Calibration: whether a classifier's probabilities say how often it is right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qkv.evaluation.scores import Score

Floats = npt.NDArray[np.float64]

BINS = 15  # as Guo et al. 2017 and most papers since


@dataclass(frozen=True)
class Bin:
    """The answers whose confidence is above `low` and at most `high`."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    """The confidence of a model's answers beside how often they are right, as fractions.

    `error` is the expected calibration error of Guo et al. 2017: the mean distance of confidence
    and accuracy in bins of equal width. `brier` is the squared distance from the truth, summed
    over the classes, between 0 and 2.
    """

    confidence: float
    accuracy: float
    error: float
    brier: float
    bins: tuple[Bin, ...]

    def scores(self) -> list[Score]:
        """Scores of the whole; fractions in percent."""
        return [
            Score("ECE", 100 * self.error),
            Score("Brier score", self.brier, digits=4),
            Score("mean confidence", 100 * self.confidence),
        ]

    def describe(self) -> str:
        """One sentence for people, without its subject."""
        says, right = round(100 * self.confidence, 1), round(100 * self.accuracy, 1)
        verdict = "as sure as it should be"
        if says != right:
            verdict = f"{'over' if says > right else 'under'}confident by {abs(says - right):.1f}"
        return (
            f"says {says:.1f} % on average and is right in {right:.1f} %: {verdict}; "
            f"ECE {100 * self.error:.1f}"
        )


def calibration(probabilities: npt.ArrayLike, gold: npt.ArrayLike, bins: int = BINS) -> Calibration:
    """Compare (N, C) probabilities with the N gold classes."""
    table, classes = np.asarray(probabilities, dtype=np.float64), np.asarray(gold)
    confidence = table.max(axis=1)
    right = (table.argmax(axis=1) == classes).astype(np.float64)
    distance = table.copy()
    distance[np.arange(len(classes)), classes] -= 1
    parts = _bins(confidence, right, bins)
    gaps = [part.count * abs(part.confidence - part.accuracy) for part in parts]
    return Calibration(
        confidence=float(confidence.mean()),
        accuracy=float(right.mean()),
        error=sum(gaps) / len(classes),
        brier=float(np.square(distance).sum(axis=1).mean()),
        bins=parts,
    )


def _bins(confidence: Floats, right: Floats, n_bins: int) -> tuple[Bin, ...]:
    edges = np.linspace(0, 1, n_bins + 1)
    # Rounding may leave a probability just above 1, which belongs to the last bin.
    index = np.searchsorted(edges[1:-1], confidence, side="left")
    counts = np.bincount(index, minlength=n_bins)
    filled = np.maximum(counts, 1)
    confidences = np.bincount(index, confidence, minlength=n_bins) / filled
    accuracies = np.bincount(index, right, minlength=n_bins) / filled
    columns = (edges[:-1], edges[1:], counts, confidences, accuracies)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(Bin(*row) for row in rows)
