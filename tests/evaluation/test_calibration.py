"""Calibration, against torchmetrics and scikit-learn, and by hand."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.special import log_softmax
from sklearn.metrics import brier_score_loss

from qkv.evaluation.calibration import Bin, calibration

SEEDS = st.integers(0, 2**32 - 1)


def random_case(
    seed: int, n_classes: int, size: int, sharpness: float
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and gold classes, where the logits know something of the gold classes."""
    generator = np.random.default_rng(seed)
    gold = generator.integers(0, n_classes, size)
    logits = generator.normal(size=(size, n_classes))
    logits[np.arange(size), gold] += 1
    return sharpness * logits, gold


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(logits, axis=1))


@given(SEEDS, st.integers(2, 5), st.integers(1, 60), st.floats(0.1, 4), st.integers(1, 20))
def test_the_expected_error_is_that_of_torchmetrics(
    seed: int, n_classes: int, size: int, sharpness: float, bins: int
) -> None:
    from torchmetrics.functional.classification import (
        multiclass_calibration_error,
    )  # which takes a second

    logits, gold = random_case(seed, n_classes, size, sharpness)
    probabilities = softmax(logits)
    edges = np.linspace(0, 1, bins + 1)
    distances = np.abs(probabilities.max(axis=1)[:, None] - edges)
    assume(distances.min() > 1e-6)  # a value on an edge may stand on either side of it
    expected = multiclass_calibration_error(
        torch.from_numpy(probabilities), torch.from_numpy(gold), n_classes, bins, norm="l1"
    )
    ours = calibration(probabilities, gold, bins)
    assert ours.error == pytest.approx(expected.item(), abs=1e-6)
    assert ours.brier == pytest.approx(
        brier_score_loss(gold, probabilities, labels=range(n_classes), scale_by_half=False)
    )
    assert sum(part.count for part in ours.bins) == size


def test_four_answers_by_hand() -> None:
    probabilities = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.44, 0.56]]
    ours = calibration(probabilities, [0, 1, 1, 1], bins=5)
    assert (ours.confidence, ours.accuracy) == pytest.approx((0.74, 0.75))
    assert [part.count for part in ours.bins] == [0, 0, 1, 2, 1]
    assert ours.bins[3] == Bin(
        pytest.approx(0.6), pytest.approx(0.8), 2, pytest.approx(0.75), pytest.approx(0.5)
    )
    assert ours.error == pytest.approx((0.44 + 2 * 0.25 + 0.1) / 4)
    assert ours.brier == pytest.approx(2 * (0.1**2 + 0.8**2 + 0.3**2 + 0.44**2) / 4)
    assert [str(score) for score in ours.scores()] == [
        "ECE 26.00",
        "Brier score 0.4668",
        "mean confidence 74.00",
    ]


def test_a_bin_holds_its_upper_edge_and_certainty_is_in_the_last() -> None:
    ours = calibration([[0.5, 0.5], [1.0, 0.0], [1.0 + 1e-7, 0.0]], [0, 0, 0], bins=2)
    assert [part.count for part in ours.bins] == [1, 2]


@pytest.mark.parametrize(
    ("confidence", "sentence"),
    [
        (0.9, "says 90.0 % on average and is right in 75.0 %: overconfident by 15.0; ECE 15.0"),
        (0.6, "says 60.0 % on average and is right in 75.0 %: underconfident by 15.0; ECE 15.0"),
        (0.75, "says 75.0 % on average and is right in 75.0 %: as sure as it should be; ECE 0.0"),
    ],
)
def test_a_sentence_says_how_sure_it_is(confidence: float, sentence: str) -> None:
    ours = calibration([[confidence, 1 - confidence]] * 4, [0, 0, 0, 1])
    assert ours.describe() == sentence
