"""The table as it is, and how alike its rows are."""

import io

import numpy as np
import pytest
import torch

from qkv.inspect.positions import dot_products, draw_positions


def sinusoids(n: int, width: int) -> np.ndarray:  # type: ignore[type-arg]
    angles = np.arange(n)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def test_dot_products_of_sinusoids_depend_on_the_distance_alone() -> None:
    found = dot_products(sinusoids(30, 16))
    for distance in range(30):
        np.testing.assert_allclose(np.diag(found, distance), found[0, distance], atol=1e-12)
    np.testing.assert_allclose(np.diag(found), 8)


def test_both_are_drawn_around_zero_with_names() -> None:
    table = sinusoids(12, 8) * 3
    figure = draw_positions(torch.tensor(table), "Near positions are alike")
    left, right = [axes for axes in figure.axes if axes.images]
    np.testing.assert_array_equal(left.images[0].get_array(), table)
    np.testing.assert_allclose(right.images[0].get_array(), table @ table.T)
    assert left.images[0].get_clim() == (-np.abs(table).max(), np.abs(table).max())
    assert (left.get_xlabel(), left.get_ylabel()) == ("dimension", "position")
    assert (right.get_xlabel(), right.get_ylabel()) == ("position", "position")
    assert figure.get_suptitle() == "Near positions are alike"
    figure.savefig(io.BytesIO())


def test_a_table_has_two_dimensions() -> None:
    with pytest.raises(ValueError, match=r"\(n, D\)"):
        draw_positions(np.zeros(3))
