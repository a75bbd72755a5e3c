"""Classification of images: files or arrays in, labels with probabilities out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.batching import BATCH_TOKENS
from qkv.convert.model_folder import (
    StoredModel,
    load_config,
    load_family,
    load_section,
    model_content,
    save_model_folder,
)
from qkv.data import Scale, read_image
from qkv.data.items.pixels import BRIGHTEST
from qkv.errors import UserError
from qkv.model import Encoder, evaluating
from qkv.tasks.classify import Classification, check_labels
from qkv.tasks.task_object import TaskObject
from qkv.tasks.texts import Progress

if TYPE_CHECKING:
    from qkv.inspect import Trace

Array = npt.NDArray[Any] | Tensor
Image = str | Path | Array


@dataclass(frozen=True)
class ImageClasses:
    """What a classifier of images predicts, and how pixels are scaled; stored with the model."""

    labels: tuple[str, ...] = ()
    mean: tuple[float, ...] = (0.0,)  # of the training images, by channel
    deviation: tuple[float, ...] = (1.0,)

    @property
    def scale(self) -> Scale:
        """How pixels between 0 and 1 are scaled."""
        return Scale(self.mean, self.deviation)


class ImageClassifier(TaskObject):
    """An encoder that reads images, with a head of labels."""

    def __init__(self, model: Encoder, classes: ImageClasses) -> None:
        self.model, self.classes = model, classes

    def _labels(self) -> tuple[str, ...]:
        return self.classes.labels

    @classmethod
    def _of(cls, folder: StoredModel, device: torch.device) -> ImageClassifier:
        _, config, _ = load_config(folder)
        classes = load_section(folder, "classify", ImageClasses)
        n_labels = config.n_labels if config.head == "sequence" else 0
        sizes = (len(classes.labels), len(classes.mean), len(classes.deviation))
        if not config.patch_size or sizes != (n_labels, config.n_channels, config.n_channels):
            raise UserError(
                f"{folder} holds no model that classifies images, or its config.json has no label "
                f"for each output or no mean and deviation for each channel; restore it."
            )
        if not all(deviation > 0 for deviation in classes.deviation):
            raise UserError(
                f"{folder} has a deviation that is not above 0 in config.json; restore it."
            )
        check_labels(classes.labels, n_labels, folder)
        return cls(load_family(folder, config, Encoder, device), classes)

    def save(self, folder: str | Path) -> None:
        """Write a model folder."""
        classes = dataclasses.asdict(self.classes)
        content = model_content("classify", self.model.config, classify=classes)
        save_model_folder(folder, content, self.model)

    @overload
    def classify(  # type: ignore[overload-overlap]  # a str is an iterable of strings too
        self, images: Image, progress: Progress | None = None
    ) -> Classification: ...
    @overload
    def classify(
        self, images: Iterable[Image], progress: Progress | None = None
    ) -> list[Classification]: ...
    def classify(
        self, images: Image | Iterable[Image], progress: Progress | None = None
    ) -> Classification | list[Classification]:
        """Label an image, or each of many (also those of an array of four dimensions).

        An image is a file's path, which is scaled to the model's size, or an array (C, H, W),
        (H, W, C) or, in grey, (H, W): whole numbers from 0 to 255, or fractions from 0 to 1.
        """
        if isinstance(images, np.ndarray | Tensor) and images.ndim == 4:
            images = list(images)
        if isinstance(images, str | Path | np.ndarray | Tensor):
            return self.classify([images], progress)[0]
        return [self._read(output) for output in self.logits(list(images), progress)]

    @torch.inference_mode()
    def logits(self, images: Sequence[Image], progress: Progress | None = None) -> list[Tensor]:
        """The head's output for each image, (C,), in float32 on the CPU."""
        device = next(self.model.parameters()).device
        count = max(1, BATCH_TOKENS[device.type] // self.model.config.n_positions)
        found: list[Tensor] = []
        with evaluating(self.model):
            for start in range(0, len(images), count):
                pixels = self.pixels(images[start : start + count], start + 1)
                found += self.model(pixels).float().cpu()
                if progress:
                    progress(len(pixels))
        return found

    def trace(self, source: Image, target: str | None = None) -> Trace:
        """Trace the pass that labels an image; `target` is the true label."""
        from qkv.inspect.trace.from_task import trace_image

        return trace_image(self, source, target)

    def pixels(self, images: Sequence[Image], first: int = 1) -> Tensor:
        """Images as the model reads them, (B, C, H, W); `first` is the number of the first one."""
        weight = next(self.model.parameters())
        given = torch.stack([self._pixels(*image) for image in enumerate(images, first)])
        return self.classes.scale(given).to(weight.device, weight.dtype)

    def _pixels(self, number: int, image: Image) -> Tensor:
        """One image as float32 pixels between 0 and 1, (C, H, W)."""
        size, channels = self.model.config.image_size, self.model.config.n_channels
        if isinstance(image, str | Path):
            image = read_image(image, size, channels)
        if not isinstance(image, np.ndarray | Tensor):
            raise UserError(
                f"Image {number} is {repr(image)[:40]}, but must be a file's path or an array."
            )
        values = _between_0_and_1(number, image)
        if values.shape == (size, size):
            values = values[None]
        elif values.shape == (size, size, channels) != (channels, size, size):
            values = values.permute(2, 0, 1)
        if values.shape != (channels, size, size):
            raise UserError(
                f"Image {number} has the shape {tuple(image.shape)}, but the model reads images of "
                f"the shape {(channels, size, size)}; scale it first."
            )
        return values

    def _read(self, logits: Tensor) -> Classification:
        found = dict(zip(self.classes.labels, logits.softmax(-1).tolist(), strict=True))
        return Classification((max(found, key=lambda label: found[label]),), found)


def _between_0_and_1(number: int, image: Array) -> Tensor:
    # Copied, because torch takes no arrays that are read-only or have negative strides.
    given = image if isinstance(image, Tensor) else torch.from_numpy(np.array(image))
    values = given.float().cpu() / (1 if given.is_floating_point() else BRIGHTEST)
    if given.dtype == torch.bool or not ((values >= 0) & (values <= 1)).all():
        raise UserError(
            f"Image {number} has pixels that are out of range or no numbers; give whole numbers "
            f"from 0 to 255, or fractions from 0 to 1."
        )
    return values
