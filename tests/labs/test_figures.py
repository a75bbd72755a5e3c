"""Figures of labs: error bars of percentages stay between 0 and 100."""

from __future__ import annotations

import pytest

from qkv_labs.figures import error_bars, new_figure


def test_error_bars_stay_within_percentages() -> None:
    _, axes = new_figure(3, 3)
    samples = [[0.9, 1.0, 1.0], [0.5, 0.6], [0.0, 0.02]]
    error_bars(axes, [1.0, 2.0, 3.0], samples, 0, "arm", scale=100)
    (bars,) = axes.collections
    high, middle, low = (segment[:, 1] for segment in bars.get_segments())
    assert high[1] == pytest.approx(100) and high[0] < 96.6
    assert middle.mean() == pytest.approx(55)
    assert low[0] == pytest.approx(0) and low[1] > 2
