"""Whether a classifier knows how often it is right: calibration, and the temperature to mend it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qkv.errors import UserError
from qkv.evaluate.classification import aligned
from qkv.evaluate.scores import Score

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer]

BINS = 15  # as Guo et al. 2017 and most papers since
LARGEST_TEMPERATURE = 100.0  # and the smallest is one over it


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
    """What a model says of its answers beside how often they are right; all are shares.

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
        """The figures that stand for the whole; shares in percent."""
        return [
            Score("ECE", 100 * self.error),
            Score("Brier score", self.brier, digits=4),
            Score("mean confidence", 100 * self.confidence),
        ]

    def describe(self) -> str:
        """One sentence for people."""
        said, right = round(100 * self.confidence, 1), round(100 * self.accuracy, 1)
        verdict = "as sure as it should be"
        if said != right:
            verdict = f"{'over' if said > right else 'under'}confident by {abs(said - right):.1f}"
        return (
            f"says {said:.1f} % on average and is right in {right:.1f} %: {verdict}; "
            f"ECE {100 * self.error:.1f}"
        )

    def table(self) -> str:
        """A line for each bin that holds answers, in percent."""
        rows = [
            [
                f"{100 * part.low:.1f}–{100 * part.high:.1f}",
                str(part.count),
                f"{100 * part.confidence:.2f}",
                f"{100 * part.accuracy:.2f}",
            ]
            for part in self.bins
            if part.count
        ]
        return aligned([["", "count", "confidence", "accuracy"], *rows])


def calibration(probabilities: npt.ArrayLike, gold: npt.ArrayLike, bins: int = BINS) -> Calibration:
    """Compare (N, C) probabilities with the N gold classes."""
    chances, classes = _checked(probabilities, gold)
    if not np.allclose(chances.sum(axis=1), 1, atol=0.02):  # half precision is that rough
        raise ValueError("the probabilities of each row must sum to one; are these logits?")
    confidence = chances.max(axis=1)
    right = (chances.argmax(axis=1) == classes).astype(np.float64)
    distance = chances.copy()
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


def temperature(logits: npt.ArrayLike, gold: npt.ArrayLike) -> float:
    """The T for which softmax(logits / T) gives (N, C) logits' gold classes most probability.

    The loss is convex in 1/T, so that halving the interval of log T by the sign of the slope finds
    the least. T stays within 1/100 and 100 where there is none: all answers right, or all wrong.
    """
    scores, classes = _checked(logits, gold)
    low, high = -math.log(LARGEST_TEMPERATURE), math.log(LARGEST_TEMPERATURE)
    for _ in range(60):
        middle = (low + high) / 2
        slope = _slope(scores, classes, math.exp(middle))
        if slope == 0:  # none is better; the first that we try is 1
            return math.exp(middle)
        low, high = (low, middle) if slope < 0 else (middle, high)
    return math.exp((low + high) / 2)


def _slope(logits: Floats, gold: Integers, temperature: float) -> float:
    """How the mean loss grows with 1/T: the logit expected less the gold one."""
    weights = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    expected = (weights * logits).sum(axis=1) / weights.sum(axis=1)
    return float((expected - logits[np.arange(len(gold)), gold]).mean())


def _bins(confidence: Floats, right: Floats, n_bins: int) -> tuple[Bin, ...]:
    edges = np.linspace(0, 1, n_bins + 1)
    # Rounding may leave a probability just above 1, which belongs to the last bin.
    places = np.searchsorted(edges[1:-1], confidence, side="left")
    counts = np.bincount(places, minlength=n_bins)
    held = np.maximum(counts, 1)
    confidences = np.bincount(places, confidence, minlength=n_bins) / held
    accuracies = np.bincount(places, right, minlength=n_bins) / held
    columns = (edges[:-1], edges[1:], counts, confidences, accuracies)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(Bin(*row) for row in rows)


def _checked(values: npt.ArrayLike, gold: npt.ArrayLike) -> tuple[Floats, Integers]:
    table, classes = np.asarray(values, dtype=np.float64), np.asarray(gold)
    if not classes.size:
        raise UserError("There is nothing to score: there are no gold answers.")
    if table.ndim != 2 or classes.shape != table.shape[:1]:
        raise ValueError(f"{table.shape} values do not fit {classes.shape} gold classes")
    if classes.dtype.kind not in "iu" or classes.min() < 0 or classes.max() >= table.shape[1]:
        raise ValueError(f"gold classes are whole numbers from 0 to {table.shape[1] - 1}")
    return table, classes
