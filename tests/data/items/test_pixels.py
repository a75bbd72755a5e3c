"""Images as batches: scaled by channel and, in training, shifted a little."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.data import Draw, ImageItems, Scale
from qkv.data.items.pixels import shifted

Pixels = npt.NDArray[np.uint8]


def pixels(n: int, channels: int = 1, height: int = 4, width: int = 4, seed: int = 0) -> Pixels:
    """Noise without black, so that what is filled in from outside shows."""
    shape = (n, channels, height, width)
    return np.random.default_rng(seed).integers(1, 256, shape, dtype=np.uint8)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 99))
def test_scaled_pixels_have_mean_0_and_deviation_1_in_each_channel(
    n: int, channels: int, seed: int
) -> None:
    images = pixels(n, channels, seed=seed)
    scale = Scale.of(images)
    assert scale.mean == pytest.approx((images / 255).mean((0, 2, 3)))
    assert scale.deviation == pytest.approx((images / 255).std((0, 2, 3)))
    values = scale(torch.from_numpy(images).float() / 255)
    assert values.mean((0, 2, 3)).tolist() == pytest.approx([0] * channels, abs=1e-5)
    assert values.std((0, 2, 3), correction=0).tolist() == pytest.approx([1] * channels, rel=1e-5)


def test_a_constant_channel_is_not_divided_by_0() -> None:
    images = pixels(3, 2)
    images[:, 1] = 51
    scale = Scale.of(images)
    assert (scale.mean[1], scale.deviation[1]) == (pytest.approx(0.2), 1.0)


def test_a_batch_holds_scaled_pixels_and_shifts_them_in_training_only() -> None:
    images = pixels(7, channels=3)
    items = ImageItems(images, np.arange(7), Scale.of(images), 5, shift=1)
    still = items.batch(np.array([4, 2]))
    mean, deviation = (
        np.array(v)[:, None, None] for v in (items.scale.mean, items.scale.deviation)
    )
    expected = (images[[4, 2]] / 255 - mean) / deviation
    torch.testing.assert_close(still.target.tokens, torch.from_numpy(expected).float())
    assert (still.labels.tolist(), still.n_labels) == ([4, 2], 2)
    drawn = [
        items.batch(np.array([4, 2]), Draw(*draw)) for draw in ((0, 0, 0), (0, 0, 0), (0, 0, 1))
    ]
    assert torch.equal(drawn[0].target.tokens, drawn[1].target.tokens)
    assert not torch.equal(drawn[0].target.tokens, drawn[2].target.tokens)


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 4, 4), (3, 3, 5)])
@pytest.mark.parametrize("most", [1, 2, 6])
def test_each_image_is_shifted_by_at_most_so_many_pixels(
    channels: int, height: int, width: int, most: int
) -> None:
    images = pixels(150, channels, height, width)
    shifts = np.random.default_rng(0).integers(0, 2 * most, (2, len(images)), endpoint=True)
    found = shifted(images, most, shifts)
    wide = np.pad(images, ((0, 0), (0, 0), (most, most), (most, most)))
    moves = []
    for image, result in zip(wide, found, strict=True):
        ways = {
            image[:, y : y + height, x : x + width].tobytes(): (y, x)
            for y in range(2 * most + 1)
            for x in range(2 * most + 1)
        }
        moves.append(ways[result.tobytes()])
    assert len({y for y, _ in moves}) > 2 and len({x for _, x in moves}) > 2
