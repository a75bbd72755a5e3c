"""Classification of images: the same encoder and head, with patches as tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from qkv.config import ModelConfig
from qkv.convert.model_folder import load_section
from qkv.data import ImageItems, LabelledImage, Scale, Splits, read_images
from qkv.errors import UserError
from qkv.run.labels import LabelJob, label_names, least_loss
from qkv.run.start import Start
from qkv.tasks.vision import ImageClasses, ImageClassifier
from qkv.training import one_class


class ImageJob(LabelJob[LabelledImage]):
    """The job of `task = "classify"` where the model reads images."""

    result: ImageClassifier

    @property
    def n_labels(self) -> int:
        """Labels of an image; 1 before they are known."""
        return len(self.labels) or 1

    def read_splits(self) -> Splits[LabelledImage]:
        """Read labelled images; equal images are in the same split."""
        self.labels: tuple[str, ...] = ()
        described = self._described()
        splits = self.split(
            lambda paths: read_images(paths, described.image_size, described.n_channels),
            key=lambda image: image.pixels.tobytes(),
            labels=lambda image: (image.label,),
            kind=lambda image: image.label,
        )
        self.labels = label_names(splits, lambda image: (image.label,))
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
        known = self._known(self.start)
        scale = known.scale if known else Scale.of(_stacked(self.splits.train))
        return ImageClassifier(model, ImageClasses(self.labels, scale.mean, scale.deviation))

    @staticmethod
    def _known(start: Start | None) -> ImageClasses | None:
        return load_section(start.source, "classify", ImageClasses) if start else None

    def keeps_head(self, start: Start) -> bool:
        """Whether the start's labels are the same."""
        known = self._known(start)
        return known is not None and known.labels == self.labels

    def encode(self, split: str) -> ImageItems:
        """Stack the images of a split."""
        index = {label: number for number, label in enumerate(self.labels)}
        examples = self.examples(split)
        return ImageItems(
            _stacked(examples),
            np.array([index[image.label] for image in examples], np.int64),
            self.result.classes.scale,
            self.config.n_positions,
            self.recipe.classify.shift,
        )

    def make_items(self) -> None:
        """Weigh the classes by what is trained on."""
        super().make_items()
        self.weights = self.class_weights(self.train_items.labels)
        weights = torch.from_numpy(self.weights)
        self.objective = one_class(weights, self.recipe.train.consistency)

    def baseline(self) -> float:
        """Return the loss of predicting label frequencies."""
        labels = self.train_items.labels
        return least_loss(np.bincount(labels) * self.weights / len(labels))


def _stacked(images: Sequence[LabelledImage]) -> Any:
    return np.stack([image.pixels for image in images])
