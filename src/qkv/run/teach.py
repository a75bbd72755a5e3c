"""Distillation: what other classifiers say of the texts that a run trains on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from qkv.convert import open_model
from qkv.convert.model_folder import StoredModel, load_config, load_section
from qkv.errors import UserError
from qkv.run.job import Job
from qkv.tasks.classify import Classes, Classifier

TEXTS = {1: "single texts", 2: "pairs of texts"}


def teacher_probabilities(
    job: Job, texts: Sequence[tuple[str, ...]], labels: Sequence[str]
) -> npt.NDArray[np.float32]:
    """Return the mean of the teachers' probabilities, (N, C), at the recipe's temperature."""
    settings = job.recipe.teacher
    total = torch.zeros(len(texts), len(labels))
    # Reading takes long, so all teachers are checked before the first one begins.
    sources = [find_teacher(name, job.folder) for name in settings.models]
    for name, source in zip(settings.models, sources, strict=True):
        check_classes(name, load_section(source, "classify", Classes), labels, len(texts[0]))
    for name, source in zip(settings.models, sources, strict=True):
        teacher = Classifier.load(source, job.device)
        job.say(f"teacher: {name} reads {len(texts):,} texts")
        order = [teacher.classes.labels.index(label) for label in labels]
        logits = torch.stack(teacher.logits(texts))[:, order]
        total += (logits / settings.temperature).softmax(dim=-1)
    return np.asarray(total / len(settings.models), np.float32)


def find_teacher(name: str, folder: Path) -> StoredModel:
    """Open a classifier of texts that is not the run's own folder."""
    source = open_model(name)
    if source.path.resolve() == folder.resolve():
        raise UserError(
            f"teacher.models: {name} is the folder of this run, which would replace its teacher; "
            f"choose another folder."
        )
    task, config, _ = load_config(source)
    if task != "classify" or config.patch_size:
        raise UserError(
            f"teacher.models: {name} is no classifier of texts (its task is {task!r}); name one."
        )
    return source


def check_classes(name: str, known: Classes, labels: Sequence[str], n_texts: int) -> None:
    """Refuse a teacher of other labels, or of other texts."""
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
    if known.n_texts not in (0, n_texts):
        raise UserError(
            f"teacher.models: {name} was trained to label {TEXTS[known.n_texts]}, but the examples "
            f"are {TEXTS[n_texts]}; name a teacher of such texts."
        )
