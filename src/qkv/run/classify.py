"""Classification: labelled texts in, an encoder with a head of labels out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.convert.model_folder import load_section
from qkv.data import (
    IGNORE,
    Labelled,
    SequenceItems,
    Splits,
    framed_arrays,
    read_labelled,
    read_texts,
)
from qkv.errors import UserError
from qkv.run.labels import ClassifyingJob, label_names
from qkv.run.teach import TEXTS, teacher_probabilities
from qkv.tasks.classify import Classes, Classifier


class ClassifyJob(ClassifyingJob[Labelled]):
    """The job of `task = "classify"` on texts."""

    result: Classifier
    classes: Classes

    def read_splits(self) -> Splits[Labelled]:
        """Read labelled texts, and unlabelled ones for teachers to label."""
        data, kind = self.recipe.data, self.recipe.classify.kind
        splits = self.split(
            lambda paths: read_labelled(paths, kind, data.label_field, data.text_field),
            key=lambda example: example.texts,
            labels=labels_of,
            kind=lambda example: example.label if kind == "class" else None,
        )
        self.classes = self._classes(splits)
        if self.classes.n_texts == 2 and not data.text_field:
            self.say(
                "each example is a pair of texts, because it has two columns beside the label; "
                "name one as text_field under [data] to read it alone"
            )
        return Splits([*splits.train, *self._unlabelled(splits)], splits.valid, splits.test)

    def _unlabelled(self, splits: Splits[Labelled]) -> list[Labelled]:
        """Read texts that only teachers label, without those that are used as examples."""
        data, teacher = self.recipe.data, self.recipe.teacher
        if not teacher.text:
            return []
        texts = read_texts(teacher.text, data.text_field, data.label_field)
        if len(texts[0]) != self.classes.n_texts:
            raise UserError(
                f"teacher.text: {teacher.text[0]} holds {TEXTS[len(texts[0])]}, but the examples "
                f"are {TEXTS[self.classes.n_texts]}; give both the same columns, or name "
                f"text_field under [data]."
            )
        used = {example.texts for example in [*splits.train, *splits.valid, *splits.test]}
        new = [Labelled(text, None) for text in dict.fromkeys(texts) if text not in used]
        self.say(f"teacher: {len(new):,} texts without labels are trained on too")
        return new

    def _classes(self, splits: Splits[Labelled]) -> Classes:
        settings, train = self.recipe.classify, splits.train
        more: dict[str, Any] = {
            "kind": settings.kind,
            "threshold": settings.threshold,
            "overlap": settings.overlap,
            "n_texts": len(train[0].texts),
            "frame": self._frame(),
        }
        if settings.kind == "number":
            values = np.array([example.label for example in train], np.float64)
            deviation = float(values.std()) or 1.0
            return Classes(("value",), mean=float(values.mean()), deviation=deviation, **more)
        least = 2 if settings.kind == "class" else 1
        return Classes(label_names(splits, labels_of, least), **more)

    def _frame(self) -> tuple[tuple[int, ...], ...]:
        """Return what a causal start has around its texts: its head looks at the last token."""
        start = self.start
        if not start or start.task != "classify" or not start.config.causal:
            return ()
        return load_section(start.source, "classify", Classes).frame

    def texts(self) -> Iterable[str]:
        """Yield all training texts."""
        return (text for example in self.splits.train for text in example.texts)

    def build_result(self, model: Any) -> Classifier:
        """Build a classifier."""
        return Classifier(model, self.tokenizer, self.classes)

    def encode(self, split: str) -> SequenceItems:
        """Give each window of a text the text's label and, in training, the teachers' opinion."""

        def encode(examples: Sequence[Labelled]) -> dict[str, npt.NDArray[Any]]:
            framed, owners = self.result.frame([example.texts for example in examples])
            return framed_arrays(framed) | {"labels": self._targets(examples)[owners]}

        classes = self.classes
        key = [classes.labels, classes.kind, classes.overlap, classes.frame, classes.mean]
        key.append(classes.deviation)
        items = self.sequences(split, encode, key)
        if split == "train" and self.recipe.teacher.models:
            texts = [example.texts for example in self.splits.train]
            opinions = teacher_probabilities(self, texts, classes.labels)
            windows = self.result.frame(texts)[1]
            items.opinions = opinions[windows]
        return items

    def _targets(self, examples: Sequence[Labelled]) -> npt.NDArray[Any]:
        classes = self.classes
        if classes.kind == "number":
            values = np.array([example.label for example in examples], np.float64)
            return ((values - classes.mean) / classes.deviation).astype(np.float32)
        index: dict[Any, int] = {label: number for number, label in enumerate(classes.labels)}
        if classes.kind == "class":
            index[None] = IGNORE
            return np.array([index[example.label] for example in examples], np.int64)
        wanted = np.zeros((len(examples), len(index)), np.float32)
        for row, example in enumerate(examples):
            wanted[row, [index[label] for label in labels_of(example)]] = 1
        return wanted


def labels_of(example: Labelled) -> tuple[str, ...]:
    """Return an example's labels, one or many."""
    if isinstance(example.label, float | None):
        return ()
    return (example.label,) if isinstance(example.label, str) else example.label
