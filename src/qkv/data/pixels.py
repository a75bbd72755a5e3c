"""Images as batches of pixels: scaled, and moved a little where they are learnt from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.data.batch import Batch, Side, Specials
from qkv.data.encoded import Indices
from qkv.data.formats.images import Pixels
from qkv.data.order import validation_plan
from qkv.data.stream import SizedStream

BRIGHTEST = 255
NO_WORDS = Specials(0, 0, 0)  # images have no special tokens


@dataclass(frozen=True)
class Scale:
    """What brings pixels between 0 and 1 to a mean of 0 and a deviation of 1 in each channel."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, pixels: Pixels) -> Scale:
        """The scale of images (N, C, H, W); a channel that is the same everywhere stays as wide."""
        count = pixels[:, 0].size
        means, deviations = [], []
        for channel in pixels.swapaxes(0, 1):
            # In whole numbers, image by image: exact, and without a wider copy of all pixels.
            total = sum(int(image.sum()) for image in channel)
            squares = sum(int(np.square(image, dtype=np.int64).sum()) for image in channel)
            means.append(total / count / BRIGHTEST)
            deviations.append(math.sqrt(count * squares - total**2) / count / BRIGHTEST or 1.0)
        return cls(tuple(means), tuple(deviations))

    def __call__(self, pixels: Tensor) -> Tensor:
        """Scale float32 pixels (B, C, H, W) between 0 and 1."""
        mean, deviation = torch.tensor(self.mean), torch.tensor(self.deviation)
        return (pixels - mean[:, None, None]) / deviation[:, None, None]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images (N, C, H, W) of one size, what is to be said of each, and how they are read."""

    pixels: Pixels
    labels: npt.NDArray[np.int64]
    scale: Scale
    n_tokens: int  # that each is to the model: its patches, and one before them

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def source_sizes(self) -> npt.NDArray[np.int64]:
        """An encoder that stands alone has no other side."""
        return np.zeros(len(self), np.int64)

    @property
    def target_sizes(self) -> npt.NDArray[np.int64]:
        """Places that each image takes in a batch."""
        return np.full(len(self), self.n_tokens)


class ImageStream(SizedStream[ImageSet]):
    """Endless batches of images, from any step on, each image moved by up to `shift` pixels."""

    def __init__(
        self,
        images: ImageSet,
        batch_tokens: int,
        accumulate: int = 1,
        seed: int = 0,
        shift: int = 0,
    ) -> None:
        super().__init__(images, NO_WORDS, "padded", batch_tokens, accumulate, seed)
        self.shift = shift

    def assemble(self, indices: Indices, place: tuple[int, int]) -> Batch:
        """Lay out the images of one batch; where it stands decides how they are moved."""
        pixels = self.items.pixels[indices]
        if self.shift:
            random = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=place))
            pixels = shifted(pixels, self.shift, random)
        return _batch(self.items, indices, pixels)


def image_batches(images: ImageSet, batch_tokens: int) -> list[Batch]:
    """Batches of all images as they are, always the same."""
    plan = validation_plan(images, batch_tokens)
    return [_batch(images, indices, images.pixels[indices]) for indices in plan]


def shifted(pixels: Pixels, most: int, random: np.random.Generator) -> Pixels:
    """Move each image (B, C, H, W) by up to `most` pixels up or down and left or right.

    What comes in from outside is black.
    """
    n_images, n_channels, height, width = pixels.shape
    wide = np.pad(pixels, ((0, 0), (0, 0), (most, most), (most, most)))
    top, left = random.integers(0, 2 * most, (2, n_images), endpoint=True)
    return wide[
        np.arange(n_images)[:, None, None, None],
        np.arange(n_channels)[:, None, None],
        (top[:, None] + np.arange(height))[:, None, :, None],
        (left[:, None] + np.arange(width))[:, None, None, :],
    ]


def _batch(images: ImageSet, indices: Sequence[int] | Indices, pixels: Pixels) -> Batch:
    values = images.scale(torch.from_numpy(pixels).float() / BRIGHTEST)
    side = Side(values, lengths=None, offsets=None, longest=images.n_tokens)
    return Batch(None, side, torch.from_numpy(images.labels[indices]), len(pixels))
