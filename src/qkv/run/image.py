"""Classification of images: the same encoder and head, with patches as tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from qkv.config import ModelConfig
from qkv.data import ImageItems, LabelledImage, Scale, Splits, read_images
from qkv.errors import UserError
from qkv.run.labels import ClassifyingJob, label_names
from qkv.tasks.vision import ImageClasses, ImageClassifier


class ImageJob(ClassifyingJob[LabelledImage]):
    """The job of `task = "classify"` where the model reads images."""

    result: ImageClassifier

    def read_splits(self) -> Splits[LabelledImage]:
        """Read labelled images; equal images are in the same split."""
        described = self._described()
        splits = self.split(
            lambda paths: read_images(paths, described.image_size, described.n_channels),
            key=lambda image: image.pixels.tobytes(),
            labels=lambda image: (image.label,),
            kind=lambda image: image.label,
        )
        self.classes = ImageClasses(label_names(splits, lambda image: (image.label,)))
        return splits

    def _described(self) -> ModelConfig:
        """Describe the model before its labels are known, and check the recipe against it."""
        self.tokenizers = None
        config, classify = self.model_config(), self.recipe.classify
        if config.n_channels not in (1, 3):
            raise UserError(
                f"[model]: n_channels is {config.n_channels}; use 1 (grey) or 3 (colours)."
            )
        if classify.kind != "class":
            raise UserError(
                f"classify.kind is '{classify.kind}', but an image has one class; use 'class'."
            )
        if self.recipe.teacher.models:
            raise UserError("teacher.models label texts, not images; leave them out.")
        if classify.shift >= config.image_size:
            raise UserError(
                f"classify.shift ({classify.shift}) must be below the image size "
                f"({config.image_size})."
            )
        return config

    def make_tokenizer(self) -> None:
        """Images have no vocabulary."""
        self.tokenizers = None

    def texts(self) -> Iterable[str]:
        """Images have no text."""
        return ()

    def build_result(self, model: Any) -> ImageClassifier:
        """Build a classifier that scales pixels as the start does, or by the training images."""
        known = self.stored_classes(self.start).scale if self.start else None
        scale = known or Scale.of(_stacked(self.splits.train))
        self.classes = ImageClasses(self.classes.labels, scale.mean, scale.deviation)
        return ImageClassifier(model, self.classes)

    def encode(self, split: str) -> ImageItems:
        """Stack the images of a split."""
        index = {label: number for number, label in enumerate(self.classes.labels)}
        examples = self.examples(split)
        return ImageItems(
            _stacked(examples),
            np.array([index[image.label] for image in examples], np.int64),
            self.classes.scale,
            self.config.n_positions,
            self.recipe.classify.shift,
        )


def _stacked(images: Sequence[LabelledImage]) -> Any:
    return np.stack([image.pixels for image in images])
