"""Classification of images: the same encoder and the same head, with patches for words."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from qkv.config import PRESETS, ModelConfig, Recipe
from qkv.convert import open_model
from qkv.convert.model_folder import load_config, load_section
from qkv.data.images import Pixels, read_images
from qkv.data.pixels import (
    ImageSet,
    ImageStream,
    LabelledImage,
    Scale,
    image_batches,
    one_by_one,
)
from qkv.data.splits import Splits, draw_examples, read_splits
from qkv.device import mixed_precision
from qkv.errors import UserError
from qkv.run.classify import (
    Verdict,
    balanced,
    check_known,
    judge_one_class,
    label_names,
    least_loss,
)
from qkv.run.job import Finished, Plan, fingerprint
from qkv.run.start import Weights
from qkv.run.understand import NO_HEAD, VALID_BATCH_TOKENS, check_head, fresh_encoder
from qkv.tasks.reading import Progress
from qkv.tasks.vision import ImageClasses, ImageClassifier
from qkv.training import build_loss, mean_loss, one_class
from qkv.training.loop import Scores


class ImageClassifying:
    """The job of `task = "classify"` where the model reads images."""

    tokenizers = None
    one_shape = False  # an epoch's last batch holds what is left

    def __init__(self, plan: Plan) -> None:
        self.plan, settings = plan, plan.recipe.train
        start = find_weights(plan.recipe)
        described = image_config(plan.recipe, start)
        self.splits = read_image_splits(plan.recipe, described)
        self._say_counts()
        labels = label_names(self.splits, lambda one: (one.label,))
        config = dataclasses.replace(described, head="sequence", n_labels=len(labels))
        known = load_section(start.source, "classify", ImageClasses) if start else None
        keep_head = known is not None and known.labels == labels
        self.model = fresh_encoder(plan, config, start, keep_head)
        # Pixels are scaled as the model that the run begins from has learnt to see them.
        scale = known.scale if known else Scale.of(_stacked(self.splits.train))
        self.verb = ImageClassifier(self.model, ImageClasses(labels, scale.mean, scale.deviation))
        train, valid = self._lay_out(self.splits.train), self._lay_out(self.splits.valid)
        shift = plan.recipe.classify.shift
        self.stream = ImageStream(
            train, settings.batch_tokens, settings.accumulate, settings.seed, shift
        )
        self._set_objective(train)
        eager = dataclasses.replace(settings, compile="off")
        self.loss_sum = build_loss(self.model, eager, plan.device, objective=self.objective)
        batches = image_batches(valid, VALID_BATCH_TOKENS)
        self.batches = [batch.to(plan.device) for batch in batches]
        self.text = fingerprint(train.pixels, train.labels, valid.pixels, valid.labels)

    def _say_counts(self) -> None:
        counts = {"train": self.splits.train, "valid": self.splits.valid, "test": self.splits.test}
        known = (f"{name}: {len(split):,} images" for name, split in counts.items() if split)
        self.plan.say("; ".join(known))

    def _lay_out(self, examples: Sequence[LabelledImage]) -> ImageSet:
        classes = self.verb.classes
        place = {label: index for index, label in enumerate(classes.labels)}
        labels = np.array([place[one.label] for one in examples], np.int64)
        return ImageSet(_stacked(examples), labels, classes.scale, self.model.config.n_positions)

    def _set_objective(self, train: ImageSet) -> None:
        """The loss, and that of one who knows how frequent each class is and nothing else."""
        n_labels = len(self.verb.classes.labels)
        weights = np.ones(n_labels, np.float32)
        if self.plan.recipe.classify.weights == "balanced":
            weights = balanced(train.labels, n_labels)
        self.objective = one_class(torch.from_numpy(weights), self.plan.recipe.train.consistency)
        self.frequencies_loss = least_loss(np.bincount(train.labels) * weights / len(train))

    def evaluate(self) -> Scores:
        """The loss, accuracy and F1 of the weights as they are now."""
        loss = mean_loss(self.model, self.loss_sum, self.batches)
        with mixed_precision(self.plan.recipe.train, self.plan.device):
            report = judge_images(self.verb, self.splits.valid).report
        assert report is not None
        return {
            "valid_loss": loss,
            "accuracy": 100 * report.accuracy,
            "f1": 100 * report.macro.f1,
        }

    def keep(self) -> None:
        """Make the run's folder a model folder of the weights as they are now."""
        self.verb.save(self.plan.folder)

    def finish(self) -> Finished:
        """Measure the best weights on validation and test images."""
        best = ImageClassifier.load(self.plan.folder, self.plan.device)
        splits = {"valid": self.splits.valid, "test": self.splits.test}
        scores = {name: judge_images(best, split).scores for name, split in splits.items() if split}
        return Finished(best, scores)


def judge_images(
    verb: ImageClassifier, examples: Sequence[LabelledImage], progress: Progress | None = None
) -> Verdict:
    """Compare what a classifier says of images with their labels."""
    right = [one.label for one in examples]
    check_known(right, verb.classes.labels)
    found = verb.classify([one.pixels for one in examples], progress)
    return judge_one_class(found, right, verb.classes.labels)


def find_weights(recipe: Recipe) -> Weights | None:
    """The model of images that the recipe begins from, where it names one."""
    if not recipe.train.start_from:
        return None
    source = open_model(recipe.train.start_from)
    return Weights(source, load_config(source)[1])


def image_config(recipe: Recipe, start: Weights | None = None) -> ModelConfig:
    """The model that the recipe, or the folder it begins from, describes; without a head."""
    check_head(recipe)
    if start:
        config = dataclasses.replace(start.changed(recipe), **NO_HEAD)
    else:
        config = ModelConfig.from_dict({**PRESETS[recipe.preset], **recipe.model}, "[model]")
    if config.n_channels not in (1, 3):
        raise UserError(f"[model]: n_channels is {config.n_channels}; use 1 (grey) or 3 (colours).")
    if recipe.classify.kind != "class":
        raise UserError(
            f"classify.kind is '{recipe.classify.kind}', but an image has one class; use 'class'."
        )
    if recipe.teacher.models:
        raise UserError(
            "teacher.models teach what is said of texts, not of images; leave them out."
        )
    if recipe.classify.shift >= config.image_size:
        raise UserError(
            f"classify.shift ({recipe.classify.shift}) moves images of {config.image_size} pixels "
            f"out of sight; use less."
        )
    return config


def read_image_splits(recipe: Recipe, config: ModelConfig) -> Splits[LabelledImage]:
    """Images with their labels; `n_examples` of those to train on.

    Images that are the same pixel by pixel are never both trained on and validated with.
    """

    def read(paths: Sequence[str], name: str) -> list[LabelledImage]:
        return one_by_one(read_images(paths, config.image_size, config.n_channels, name))

    def key(image: LabelledImage) -> str:
        return hashlib.blake2b(image.pixels.tobytes(), digest_size=16).hexdigest()

    data, seed = recipe.data, recipe.train.seed
    splits = read_splits(data, seed, read, key, lambda one: (one.label,))
    train = draw_examples(splits.train, data.n_examples, seed, lambda one: one.label)
    return Splits(train, splits.valid, splits.test)


def _stacked(examples: Sequence[LabelledImage]) -> Pixels:
    return np.stack([one.pixels for one in examples])
