"""Correlations and errors, against scipy and scikit-learn."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import mean_absolute_error, mean_squared_error

from qkv.evaluation.regression import regression_scores

GRADES = st.integers(-20, 20).map(lambda number: number / 4)  # few of them, so that many are equal
NUMBERS = GRADES | st.floats(-1e6, 1e6).map(lambda number: round(number, 3))
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=30)


@given(PAIRS | st.lists(st.tuples(GRADES, GRADES), min_size=2, max_size=30))
def test_the_scores_are_scipy_s_and_scikit_learn_s(pairs: list[tuple[float, float]]) -> None:
    found, gold = [one for one, _ in pairs], [other for _, other in pairs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy says that it is undefined where all are the same
        correlations = [stats.pearsonr(found, gold)[0], stats.spearmanr(found, gold)[0]]
    scores = regression_scores(found, gold)
    assert [score.name for score in scores] == [
        "Pearson",
        "Spearman",
        "mean squared error",
        "mean absolute error",
    ]
    expected = [
        *(100 * np.nan_to_num(correlations)),
        mean_squared_error(gold, found),
        mean_absolute_error(gold, found),
    ]
    assert [score.value for score in scores] == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    _, spearman, squared, absolute = regression_scores([1, 1, 2], [1, 2, 3])
    assert spearman.value == pytest.approx(100 * math.sqrt(3) / 2)  # of ranks 1.5 1.5 3 and 1 2 3
    assert (squared.value, absolute.value) == pytest.approx((2 / 3, 2 / 3))


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_the_unit_makes_no_difference_to_a_correlation(scale: float) -> None:
    found, gold = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 2.0])
    with np.errstate(over="ignore"):
        pearson, spearman = regression_scores(scale * found, scale * gold)[:2]
    expected = [stats.pearsonr(found, gold)[0], stats.spearmanr(found, gold)[0]]
    assert [pearson.value, spearman.value] == pytest.approx([100 * one for one in expected])


def test_an_answer_that_is_always_the_same_has_no_correlation() -> None:
    assert [score.value for score in regression_scores([0.1] * 3, [1, 2, 3])[:2]] == [0, 0]
    assert [score.value for score in regression_scores([5], [5])] == [0, 0, 0, 0]


def test_an_answer_that_is_no_number_shows() -> None:
    assert all(math.isnan(score.value) for score in regression_scores([math.nan, 1, 2], [1, 2, 3]))
