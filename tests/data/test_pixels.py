"""Images as batches: scaled by channel, moved a little, the same at every resumption."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.data import Batch
from qkv.data.formats.images import Images, Pixels
from qkv.data.pixels import (
    ImageSet,
    ImageStream,
    Scale,
    image_batches,
    one_by_one,
    shifted,
)

N_TOKENS = 5


def pixels(n: int, channels: int = 1, height: int = 4, width: int = 4, seed: int = 0) -> Pixels:
    """Noise without black, so that what comes in from outside is seen."""
    shape = (n, channels, height, width)
    return np.random.default_rng(seed).integers(1, 256, shape, dtype=np.uint8)


def image_set(n: int, channels: int = 1) -> ImageSet:
    images = pixels(n, channels)
    return ImageSet(images, np.arange(n), Scale.of(images), N_TOKENS)


def moved_by(image: Pixels, down: int, right: int) -> Pixels:
    """One image (C, H, W), moved pixel by pixel."""
    found = np.zeros_like(image)
    _, height, width = image.shape
    for row in range(height):
        for column in range(width):
            if 0 <= row - down < height and 0 <= column - right < width:
                found[:, row, column] = image[:, row - down, column - right]
    return found


def ways(image: Pixels, most: int) -> dict[bytes, tuple[int, int]]:
    """All that an image may become, and how it was moved then."""
    steps = range(-most, most + 1)
    return {moved_by(image, y, x).tobytes(): (y, x) for y in steps for x in steps}


def assert_equal(one: Batch, other: Batch) -> None:
    assert torch.equal(one.target.tokens, other.target.tokens)
    assert torch.equal(one.labels, other.labels)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 99))
def test_scaled_pixels_have_mean_0_and_deviation_1_in_each_channel(
    n: int, channels: int, seed: int
) -> None:
    images = pixels(n, channels, seed=seed)
    scale = Scale.of(images)
    assert scale.mean == pytest.approx((images / 255).mean((0, 2, 3)))
    assert scale.deviation == pytest.approx((images / 255).std((0, 2, 3)))
    values = scale(torch.from_numpy(images).float() / 255)
    assert values.dtype == torch.float32
    assert values.mean((0, 2, 3)).tolist() == pytest.approx([0] * channels, abs=1e-5)
    assert values.std((0, 2, 3), correction=0).tolist() == pytest.approx([1] * channels, rel=1e-5)


def test_a_channel_that_is_the_same_everywhere_is_not_divided_by_nothing() -> None:
    images = pixels(3, 2)
    images[:, 1] = 51
    scale = Scale.of(images)
    assert (scale.mean[1], scale.deviation[1]) == (pytest.approx(0.2), 1.0)
    assert scale(torch.from_numpy(images).float() / 255)[:, 1].abs().max() < 1e-6


def test_a_batch_holds_scaled_pixels_channel_by_channel() -> None:
    images = image_set(7, channels=3)
    [batch] = image_batches(images, 7 * N_TOKENS)
    means, deviations = np.array(images.scale.mean), np.array(images.scale.deviation)
    for row in range(7):
        for channel in range(3):
            value = (images.pixels[row, channel] / 255 - means[channel]) / deviations[channel]
            found = batch.target.tokens[row, channel]
            torch.testing.assert_close(found, torch.from_numpy(value).float())
    assert batch.source is None
    assert batch.target.lengths is batch.target.offsets is batch.target.segments is None
    assert (batch.labels.tolist(), batch.n_labels) == (list(range(7)), 7)


@pytest.mark.parametrize(("batch_tokens", "rows"), [(5, 1), (3, 1), (24, 4), (25, 5), (5000, 18)])
def test_a_batch_has_as_many_images_as_the_budget_has_room_for(
    batch_tokens: int, rows: int
) -> None:
    stream = ImageStream(image_set(18), batch_tokens)
    epoch = [one for [one] in islice(stream.steps_from(0), len(stream.plan(0)))]
    sizes = sorted((len(batch.labels) for batch in epoch), reverse=True)
    assert sizes == [rows] * (18 // rows) + [18 % rows] * (18 % rows > 0)
    assert sorted(label for one in epoch for label in one.labels.tolist()) == list(range(18))
    assert sum(len(batch.labels) for batch in image_batches(image_set(18), batch_tokens)) == 18


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 4, 4), (3, 3, 5)])
@pytest.mark.parametrize("most", [1, 2, 6])
def test_images_move_by_so_many_pixels_at_the_most_each_its_own_way(
    channels: int, height: int, width: int, most: int
) -> None:
    images = pixels(150, channels, height, width)
    before = images.copy()
    found = shifted(images, most, np.random.default_rng(0))
    assert found.shape == images.shape and found.dtype == np.uint8
    assert np.array_equal(images, before)
    moves = [ways(image, most)[one.tobytes()] for image, one in zip(images, found, strict=True)]
    # Beyond its own size an image is out of sight, and all such moves look the same.
    seen = {move for move in moves if abs(move[0]) < height and abs(move[1]) < width}
    reach = min(2 * most + 1, 2 * height - 1) * min(2 * most + 1, 2 * width - 1)
    assert len(seen) > 0.6 * reach
    assert len({move[0] for move in moves}) > 2 and len({move[1] for move in moves}) > 2


def test_where_a_batch_stands_decides_how_its_images_are_moved() -> None:
    images = image_set(6)
    indices = np.arange(6)

    def batch(seed: int, *place: int) -> Batch:
        stream = ImageStream(images, 30, seed=seed, shift=1)
        return stream.assemble(indices, (place[0], place[1]))

    first = batch(0, 0, 0)
    assert_equal(batch(0, 0, 0), first)
    for other in (batch(1, 0, 0), batch(0, 1, 0), batch(0, 0, 1)):
        assert torch.equal(other.labels, first.labels)
        assert not torch.equal(other.target.tokens, first.target.tokens)


@pytest.mark.parametrize(("shift", "accumulate"), [(0, 1), (2, 1), (1, 3)])
def test_resuming_at_any_step_is_exact(shift: int, accumulate: int) -> None:
    def stream() -> ImageStream:
        return ImageStream(image_set(20), 3 * N_TOKENS, accumulate, seed=4, shift=shift)

    n_steps = 3 * len(stream().plan(0)) // accumulate
    unbroken = list(islice(stream().steps_from(0), n_steps))
    for step in range(n_steps):
        [*resumed] = islice(stream().steps_from(step), n_steps - step)
        for one, other in zip(unbroken[step:], resumed, strict=True):
            assert len(one) == len(other) == accumulate
            for mine, theirs in zip(one, other, strict=True):
                assert_equal(mine, theirs)


def test_images_are_moved_where_they_are_learnt_from_only() -> None:
    images = image_set(9)
    [still] = image_batches(images, 1000)
    [[unmoved]] = islice(ImageStream(images, 1000).steps_from(0), 1)
    [[moved]] = islice(ImageStream(images, 1000, shift=1).steps_from(0), 1)
    assert torch.equal(unmoved.target.tokens, still.target.tokens[unmoved.labels])
    assert torch.equal(moved.labels, unmoved.labels)
    assert not torch.equal(moved.target.tokens, unmoved.target.tokens)


def test_images_one_by_one() -> None:
    images = pixels(3, 2)
    found = one_by_one(Images(images, ("b", "a", "b")))
    assert [one.label for one in found] == ["b", "a", "b"]
    assert all(np.array_equal(one.pixels, image) for one, image in zip(found, images, strict=True))
