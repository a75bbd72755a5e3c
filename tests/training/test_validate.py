"""Noticing that a run does not learn."""

import math

import pytest

from qkv.data import EncodedPairs, Ragged
from qkv.training import complaint, label_entropy


def test_a_model_no_better_than_frequencies_does_not_learn() -> None:
    sentence = complaint(valid_loss=3.0, wrong_source_loss=9.0, frequencies_loss=3.0)
    assert sentence is not None
    assert "does not learn" in sentence
    assert "(3.00)" in sentence
    assert "lower learning rate" in sentence


@pytest.mark.parametrize("gain", [-0.2, 0.0, 0.04])
def test_a_model_that_a_wrong_source_does_not_hurt_does_not_use_it(gain: float) -> None:
    sentence = complaint(valid_loss=2.0, wrong_source_loss=2.0 + gain, frequencies_loss=3.0)
    assert sentence is not None
    assert "does not use the source" in sentence
    assert "aligned" in sentence


def test_a_model_that_learns_is_left_in_peace() -> None:
    assert complaint(valid_loss=2.0, wrong_source_loss=2.2, frequencies_loss=3.0) is None


def test_the_entropy_of_labels_counts_each_end_once() -> None:
    """Labels 5 5 7 and two ends: shares 2/5, 1/5, 2/5."""
    pairs = EncodedPairs(Ragged.of([[4], [4]]), Ragged.of([[5, 5], [7]]))
    expected = -(2 * 0.4 * math.log(0.4) + 0.2 * math.log(0.2))
    assert label_entropy(pairs) == pytest.approx(expected, rel=1e-12)
