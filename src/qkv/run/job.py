"""What a task brings to a run: a model, its batches, its measures and its folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from qkv.config import PRESETS, ModelConfig, Recipe
from qkv.convert import open_model
from qkv.data import Pair
from qkv.errors import UserError
from qkv.evaluation import Score
from qkv.model import Model
from qkv.run.claim import CHECKPOINTS
from qkv.tasks.folder import Tokenizers, load_config
from qkv.text import Tokenizer
from qkv.training import Objective
from qkv.training.loop import Scores, Stream

BY_TOKENIZER = ("vocab_size", "source_vocab_size", "pad_id", "bos_id", "eos_id")


@dataclass(frozen=True)
class Plan:
    """What every job is told."""

    recipe: Recipe
    folder: Path
    device: torch.device
    say: Callable[[str], None]
    resume: bool = False

    @property
    def kept_tokenizers(self) -> Tokenizers | None:
        """A resumed run's tokenizers, where it got that far; they stand beside its checkpoints."""
        if not self.resume:
            return None
        try:
            return Tokenizers.load(self.folder / CHECKPOINTS)
        except UserError:
            return None


@dataclass(frozen=True)
class Finished:
    """What a run has to show."""

    result: Any  # the object of the task, with the best weights
    scores: dict[str, list[Score]]  # of "valid" and, where there is one, "test"
    pairs: dict[str, list[Pair]] = field(default_factory=dict)  # what was scored, where pairs are


class Job(Protocol):
    """One task's part of a run. Making it reads the text and builds the model, fresh."""

    one_shape: bool  # all training batches have the same shape
    frequencies_loss: float  # what knowing each token's frequency alone would score
    text: str  # a fingerprint of what is trained on and validated with

    @property
    def tokenizers(self) -> Tokenizers | None:
        """The vocabularies; none where the model reads images."""

    @property
    def model(self) -> Model:
        """What is trained."""

    @property
    def objective(self) -> Objective:
        """What it is taught."""

    @property
    def stream(self) -> Stream:
        """What it is trained on."""

    def evaluate(self) -> Scores:
        """Measure the weights as they are now."""

    def keep(self) -> None:
        """Make the run's folder a model folder of the weights as they are now."""

    def finish(self) -> Finished:
        """Score the best weights."""


def fingerprint(*facts: int | str | npt.NDArray[Any]) -> str:
    """A short name of some facts, which others are most unlikely to have."""
    digest = hashlib.blake2b(digest_size=16)
    for fact in facts:
        digest.update(np.ascontiguousarray(fact).tobytes())
    return digest.hexdigest()


def model_config(recipe: Recipe, tokenizer: Tokenizer, **more: Any) -> ModelConfig:
    """The preset, what the recipe changes in it, and what the tokenizer decides."""
    for name in BY_TOKENIZER:
        if name in recipe.model:
            raise UserError(f"[model]: {name} follows from the tokenizer; set it in [tokenizer].")
    values = {**PRESETS[recipe.preset], **more, **recipe.model, **tokens_of(tokenizer)}
    return ModelConfig.from_dict(values, "[model]")


def tokens_of(tokenizer: Tokenizer) -> dict[str, int]:
    """What a tokenizer decides of a model."""
    return {
        "vocab_size": len(tokenizer),
        "pad_id": tokenizer.pad_id,
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
    }


def reads_images(recipe: Recipe) -> bool:
    """Whether the recipe's model, or the one that it begins from, reads images, and not text."""
    if recipe.train.start_from:
        _, config, _ = load_config(open_model(recipe.train.start_from))
        return bool(config.patch_size)
    return bool({**PRESETS[recipe.preset], **recipe.model}.get("patch_size"))


def text_length(recipe: Recipe, model: ModelConfig) -> int:
    """The longest sequence that is trained on."""
    if recipe.data.max_length > model.max_length:
        raise UserError(
            f"data.max_length ({recipe.data.max_length}) is over model.max_length "
            f"({model.max_length}); raise the one or lower the other."
        )
    return recipe.data.max_length or model.max_length
