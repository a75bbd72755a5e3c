"""Images as batches of pixels, scaled and, in training, shifted a little."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.data.batch import Batch, Packing, Side
from qkv.data.formats.images import Pixels
from qkv.data.items.base import Draw, DrawnItems
from qkv.data.ragged import Indices

BRIGHTEST = 255


@dataclass(frozen=True)
class Scale:
    """Scales pixels between 0 and 1 to mean 0 and deviation 1 in each channel."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, pixels: Pixels) -> Scale:
        """Measure images (N, C, H, W); the deviation of a constant channel is taken as 1."""
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


class ImageItems(DrawnItems):
    """Images (N, C, H, W) of one size with labels; in training, shifted by up to `shift` pixels."""

    def __init__(
        self,
        pixels: Pixels,
        labels: npt.NDArray[np.int64],
        scale: Scale,
        n_tokens: int,  # positions that an image takes: its patches, and one before them
        shift: int = 0,
    ) -> None:
        content = hashlib.blake2b(pixels.tobytes(), digest_size=16)
        content.update(labels.tobytes())
        super().__init__(np.broadcast_to(np.int64(n_tokens), len(pixels)), content.hexdigest())
        self.pixels, self.labels, self.scale = pixels, labels, scale
        self.n_tokens, self.shift = n_tokens, shift

    def share(self, items: Indices, rows: Indices, draw: Draw, shape: Packing) -> Batch:
        """Draw shifts for a whole batch, and scale and shift some rows of it."""
        pixels = self.pixels[items[rows]]
        if self.shift and draw.epoch >= 0:
            shifts = draw.random().integers(0, 2 * self.shift, (2, len(items)), endpoint=True)
            pixels = shifted(pixels, self.shift, shifts[:, rows])
        values = self.scale(torch.from_numpy(pixels).float() / BRIGHTEST)
        side = Side(values, lengths=None, offsets=None, longest=self.n_tokens)
        return Batch(None, side, torch.from_numpy(self.labels[items[rows]]), len(pixels))


def shifted(pixels: Pixels, most: int, shifts: Indices) -> Pixels:
    """Shift each image (B, C, H, W) by `shifts` (2, B) less `most` pixels, filling black."""
    n_images, n_channels, height, width = pixels.shape
    wide = np.pad(pixels, ((0, 0), (0, 0), (most, most), (most, most)))
    top, left = shifts
    return wide[
        np.arange(n_images)[:, None, None, None],
        np.arange(n_channels)[:, None, None],
        (top[:, None] + np.arange(height))[:, None, :, None],
        (left[:, None] + np.arange(width))[:, None, None, :],
    ]
