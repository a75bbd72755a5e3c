"""Learning from other classifiers: what they say of the texts that a run trains on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from qkv.convert import open_model
from qkv.errors import UserError
from qkv.run.job import Plan
from qkv.tasks.classify import Classifier
from qkv.tasks.folder import load_config


def opinions(
    plan: Plan, texts: Sequence[tuple[str, ...]], labels: Sequence[str]
) -> npt.NDArray[np.float32]:
    """The mean of what the teachers say of each text, (N, C), at the recipe's temperature."""
    settings = plan.recipe.teacher
    total = torch.zeros(len(texts), len(labels))
    for name in settings.models:
        teacher = load_teacher(name, labels, plan.device)
        plan.say(f"teacher: {name} reads {len(texts):,} texts")
        order = [teacher.classes.labels.index(label) for label in labels]
        logits = torch.stack(teacher.logits(texts))[:, order]
        total += (logits / settings.temperature).softmax(dim=-1)
    return np.asarray(total / len(settings.models), np.float32)


def load_teacher(name: str, labels: Sequence[str], device: torch.device) -> Classifier:
    """A classifier of texts that says these very labels."""
    source = open_model(name)
    task, config, _ = load_config(source)
    if task != "classify" or config.patch_size:
        raise UserError(
            f"teacher.models: {name} labels no texts (its task is {task!r}); name a classifier."
        )
    teacher = Classifier.load(source, device)
    known = teacher.classes
    if known.kind != "class":
        raise UserError(
            f"teacher.models: {name} gives several classes at once, or a number (its kind is "
            f"{known.kind!r}); name a teacher that gives one class."
        )
    if sorted(known.labels) != sorted(labels):
        raise UserError(
            f"teacher.models: {name} tells apart {', '.join(known.labels)}, but the examples "
            f"{', '.join(labels)}; name a teacher of the same labels."
        )
    return teacher
