"""Tagging: sentences of labelled words in, an encoder with a head for each word out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.data import IGNORE, Sentence, SequenceItems, Splits, framed_arrays, read_tagged
from qkv.errors import UserError
from qkv.run.labels import LabelJob
from qkv.tasks.tag import Tagger, Tags
from qkv.text import OUTSIDE, PREFIXES, Scheme, guess_scheme, join_words, label_set
from qkv.training import entropy


class TagJob(LabelJob[Sentence]):
    """The job of `task = "tag"`."""

    result: Tagger
    classes: Tags

    def read_splits(self) -> Splits[Sentence]:
        """Read sentences with a label for each word."""
        settings = self.recipe.tag
        splits = self.split(
            lambda paths: read_tagged(paths, settings.word_column, settings.label_column),
            key=lambda sentence: sentence.words,
        )
        self.classes = self._tags(splits.train)
        self._check_labels("validation", splits.valid)
        self._check_labels("test", splits.test)
        return splits

    def _tags(self, train: Sequence[Sentence]) -> Tags:
        setting, written = self.recipe.tag.scheme, [sentence.labels for sentence in train]
        scheme: Scheme | None = guess_scheme(written)
        if setting != "auto":
            scheme = next((known for known in PREFIXES if known == setting), None)
        elif scheme is None:
            self._warn_of_odd_labels({label for labels in written for label in labels})
        try:
            labels = label_set(written, scheme)
        except ValueError as error:
            raise UserError(
                f"tag.scheme: {error}; correct the label, or leave scheme = 'auto'."
            ) from error
        if len(labels) < 2:
            raise UserError(
                f"data: the training examples have only the label {', '.join(labels)!r}; there "
                f"must be two or more to tell apart."
            )
        return Tags(tuple(labels), scheme or "none", self.recipe.tag.overlap)

    def _warn_of_odd_labels(self, labels: set[str]) -> None:
        """One mistyped label must not turn entities into plain labels silently."""
        odd = sorted(label for label in labels if guess_scheme([[label]]) is None)
        if len(odd) < len(labels - {OUTSIDE}):
            self.say(
                f"the label {odd[0]} is not written like an entity, as others are, so that labels "
                f"are learned and scored one by one; if it is a mistake, correct it"
            )

    def _check_labels(self, name: str, split: Sequence[Sentence]) -> None:
        """Labels that no training example has count as missed, if they are labels at all."""
        given = {label for sentence in split for label in sentence.labels}
        unknown = sorted(given - set(self.classes.labels))
        for label in unknown:
            if self.classes.scheme != "none" and guess_scheme([[label]]) is None:
                raise UserError(
                    f"data: the {name} examples have the label {label!r}, but those of training "
                    f"are O or have a prefix and a type like B-person; correct the label."
                )
        if split and given <= set(unknown):
            raise UserError(
                f"data: no training example has any of the labels {', '.join(unknown)} of the "
                f"{name} examples; give both the same labels."
            )
        if unknown:
            self.say(
                f"no training example has the label {', '.join(unknown)} of the {name} examples: "
                f"it will never be found"
            )

    def texts(self) -> Iterable[str]:
        """Yield all training sentences."""
        return (join_words(sentence.words)[0] for sentence in self.splits.train)

    def build_result(self, model: Any) -> Tagger:
        """Build a tagger."""
        return Tagger(model, self.tokenizer, self.classes)

    def encode(self, split: str) -> SequenceItems:
        """Label each word's first token, in the window that decides it; no other counts."""
        classes = self.classes
        index = {label: number for number, label in enumerate(classes.labels)}

        def encode(sentences: Sequence[Sentence]) -> dict[str, npt.NDArray[Any]]:
            windows = self.result.frame([sentence.words for sentence in sentences])
            labels = [np.full(len(window.framed.tokens), IGNORE, np.int64) for window in windows]
            for window, row in zip(windows, labels, strict=True):
                gold = sentences[window.sentence].labels
                row[window.places] = [index.get(gold[word], IGNORE) for word in window.words]
            arrays = framed_arrays([window.framed for window in windows])
            return arrays | {"labels": np.concatenate([np.zeros(0, np.int64), *labels])}

        return self.sequences(split, encode, [classes.labels, classes.overlap], by_token=True)

    def baseline(self) -> float:
        """Return the loss of predicting label frequencies."""
        labels = self.train_items.labels
        return entropy(np.bincount(labels[labels != IGNORE]))
