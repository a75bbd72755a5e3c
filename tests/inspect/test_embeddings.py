"""Neighbours by cosine, and a plane that keeps what it can of the distances."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.inspect.answers.embeddings import draw_plane, nearest, principal_plane


def test_the_nearest_point_the_same_way_whatever_their_length() -> None:
    table = torch.tensor([[1.0, 0], [10, 0.1], [0, 3], [-5, 0], [0, 0], [1, 1]])
    found = nearest(table, 0, k=4)
    assert [id for id, _ in found] == [1, 5, 2, 4]
    assert found[1][1] == pytest.approx(np.sqrt(0.5))
    assert found[3][1] == 0  # zeros point nowhere
    assert nearest(table, 0, k=99)[-1] == (3, -1.0)
    assert len(nearest(table, 0, k=99)) == 5


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 9))
def test_points_of_a_plane_keep_their_distances(seed: int, width: int) -> None:
    random = np.random.default_rng(seed)
    turn = np.linalg.qr(random.normal(size=(width, width)))[0][:2]
    flat = random.normal(size=(8, 2)) * [3, 1]
    points, shares = principal_plane(flat @ turn + random.normal(size=width))

    def distances(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return np.linalg.norm(x[:, None] - x[None], axis=-1)

    np.testing.assert_allclose(distances(points), distances(flat), atol=1e-9)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] >= shares[1]
    again, _ = principal_plane(flat @ turn)
    np.testing.assert_allclose(again, points, atol=1e-9)  # the signs too


@pytest.mark.parametrize("direction", [(3.0, -1.0, 0.5), (-3.0, 1.0, -0.5), (1.0, -4.0, 0.0)])
def test_an_axis_points_where_its_largest_component_grows(direction: tuple[float, ...]) -> None:
    places = np.array([-2.0, -1.0, 0.0, 3.0])
    points, shares = principal_plane(places[:, None] * np.array(direction))
    sign = np.sign(direction[int(np.abs(direction).argmax())])
    np.testing.assert_allclose(points[:, 0], sign * places * np.linalg.norm(direction))
    np.testing.assert_allclose(shares, [1, 0], atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 5), (4, 1), (3, 3)])
def test_few_vectors_and_equal_ones_have_a_place_too(shape: tuple[int, int]) -> None:
    points, shares = principal_plane(np.ones(shape))
    assert points.shape == (shape[0], 2) and shares.shape == (2,)
    assert np.isfinite(points).all() and np.isfinite(shares).all()
    draw_plane(np.ones(shape), ["a"] * shape[0], ["g"] * shape[0], "").savefig(io.BytesIO())


def test_one_vector_far_away_does_not_empty_the_plane() -> None:
    vectors = np.random.default_rng(0).normal(size=(12, 4))
    away = np.concatenate([vectors, [[1000.0, 0, 0, 0]]])
    figure = draw_plane(away, list("abcdefghijklm"), ["x"] * 13, "Groups")
    (axes,) = figure.axes
    points, _ = principal_plane(vectors)
    group, ring = axes.collections
    np.testing.assert_allclose(group.get_offsets()[:12], points)
    (edge,) = ring.get_offsets()
    (left, right), spread = axes.get_xlim(), np.ptp(points[:, 0])
    assert left < edge[0] < right and right - left < 1.2 * spread
    assert "1 vectors are far away" in figure.get_supxlabel()


def test_each_group_has_its_points_colour_and_name() -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 4))
    figure = draw_plane(vectors, list("abcdef"), ["x", "x", "y", "y", "y", "z"], "Groups")
    (axes,) = figure.axes
    points, shares = principal_plane(vectors)
    found = np.concatenate([group.get_offsets() for group in axes.collections])
    np.testing.assert_allclose(found, points)
    assert [len(group.get_offsets()) for group in axes.collections] == [2, 3, 1]
    assert len({tuple(group.get_facecolor()[0]) for group in axes.collections}) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["x", "y", "z"]
    assert {text.get_text(): tuple(text.xy) for text in axes.texts} == {
        name: tuple(point) for name, point in zip("abcdef", points, strict=True)
    }
    assert f"{shares[0]:.0%}" in axes.get_xlabel()
    assert figure.get_suptitle() == "Groups"


def test_labels_hardly_cover_each_other_and_those_left_out_are_counted() -> None:
    random = np.random.default_rng(1)
    figure = draw_plane(
        random.normal(size=(60, 8)), [f"word{i}" for i in range(60)], ["g"] * 60, ""
    )
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) > 45
    areas = [
        max(0, min(a.x1, b.x1) - max(a.x0, b.x0))
        * max(0, min(a.y1, b.y1) - max(a.y0, b.y0))
        / min(a.width * a.height, b.width * b.height)
        for place, a in enumerate(boxes)
        for b in boxes[:place]
    ]
    assert max(areas) < 0.6
    assert sum(area > 0.1 for area in areas) < 8
    crowd = draw_plane(np.repeat(np.eye(2), 20, axis=0), ["label"] * 40, ["g"] * 40, "")
    written = len(crowd.axes[0].texts)
    assert written < 40
    assert f"{40 - written} labels are left out" in crowd.get_supxlabel()


def test_every_vector_needs_a_label() -> None:
    with pytest.raises(ValueError, match="3 vectors, 2 labels"):
        draw_plane(np.eye(3), ["a", "b"], ["g", "g"], "")
