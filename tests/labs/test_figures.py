"""Figures of labs: error bars of percentages stay between 0 and 100."""

from __future__ import annotations

import pytest

from qkv_labs.figures import error_bars, new_figure, within_percent


def test_spreads_of_percentages_end_at_0_and_100() -> None:
    assert within_percent([50.0, 98.0, 1.0], [5.0, 5.0, 5.0]) == ([5, 5, 1], [5, 2, 5])


def test_error_bars_stay_within_percentages() -> None:
    _, axes = new_figure(3, 3)
    error_bars(axes, [1.0, 2.0], [[0.9, 1.0, 1.0], [0.5, 0.6]], 0, "arm", scale=100)
    (bars,) = axes.collections
    (first, second) = (segment[:, 1] for segment in bars.get_segments())
    assert first[1] == pytest.approx(100) and first[0] < 96.6
    assert second.mean() == pytest.approx(55)
