"""What the objects of all tasks have in common: how they are loaded and shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

import torch

from qkv.config import TASKS, Recipe, load_recipe
from qkv.convert.model_folder import StoredModel, load_config
from qkv.convert.opening import open_model
from qkv.device import pick_device
from qkv.errors import UserError
from qkv.model import Encoder, Model

MOST_LABELS = 5  # that are named


def object_of(stored: StoredModel) -> str:
    """Return the name of the class that a model is an object of."""
    task, config, _ = load_config(stored)
    if task not in TASKS:
        known = ", ".join(TASKS)
        raise UserError(f"{stored}: unknown task {task!r}; this version of qkv knows {known}.")
    reads_images = task == "classify" and config.patch_size
    return "ImageClassifier" if reads_images else TASKS[task].result


class TaskObject(ABC):
    """A model with what its task needs."""

    recipe_path: Path | None = None  # of the run that made it

    @classmethod
    def load(
        cls,
        name: str | Path | StoredModel,
        device: str | torch.device = "auto",
        dtype: str | None = None,
        adapter: str | Path | None = None,
    ) -> Self:
        """Load a model as `qkv.load` does, which must be one of this kind.

        An `Encoder` may be of any task: it is what stands under the task's head.
        """
        stored = open_model(name, dtype, adapter)
        kind = object_of(stored)
        if {kind, "Encoder"}.isdisjoint(base.__name__ for base in cls.__mro__):
            raise UserError(
                f"{name} holds no model for {cls.__name__}; load it with qkv.{kind}.load, or with "
                f"qkv.load."
            )
        loaded = cls._of(stored, pick_device(device))
        loaded.recipe_path = stored.recipe_path.absolute()
        return loaded

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run that made the model, or the defaults where that is not known.

        It says how files of examples are read when the model is evaluated.
        """
        path = self.recipe_path
        return load_recipe(path) if path and path.exists() else Recipe()

    @classmethod
    @abstractmethod
    def _of(cls, folder: StoredModel, device: torch.device) -> Self:
        """Build the object of a model that was opened."""

    def __repr__(self) -> str:
        model: Model | Encoder = vars(self)["model"]
        config = model.config
        sizes = {"encoder": config.n_encoder_layers, "decoder": config.n_decoder_layers}
        stacks = [n for name, n in sizes.items() if name in config.family.split("-")]
        layers = " + ".join(map(str, stacks))
        parts = [f"{layers} layer{'' if stacks == [1] else 's'} × {config.d_model}"]
        if config.patch_size:
            parts.append(f"images of {config.image_size} × {config.image_size}")
        else:
            parts += [f"vocabulary {config.vocab_size:,}", f"context {config.max_length:,}"]
        labels = self._labels()
        more = f", … ({len(labels)})" if len(labels) > MOST_LABELS else ""
        if labels:
            parts.append(f"labels {', '.join(labels[:MOST_LABELS])}{more}")
        device = next((tensor.device for tensor in model.parameters()), None)
        return f"{type(self).__name__}({'; '.join(parts)}{f'; on {device}' if device else ''})"

    def _labels(self) -> tuple[str, ...]:
        return ()
