"""Parts that jobs on labelled examples share: encoding through the cache, labels, weights."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
import torch

from qkv.convert.model_folder import load_section
from qkv.data import IGNORE, SequenceItems, Splits, cached_examples
from qkv.errors import UserError
from qkv.run.job import Example, ExampleJob
from qkv.run.start import Start
from qkv.text import MASK, Tokenizer
from qkv.training import entropy, many_classes, number, one_class


class LabelJob(ExampleJob[Example], ABC, Generic[Example]):
    """A job that puts a head on an encoder and trains it on labelled examples."""

    classes: Any = None
    """What the head's outputs mean, where the examples decide it; stored with the model."""

    @property
    def n_labels(self) -> int:
        """Outputs of the head: one for each label of the examples."""
        return len(self.classes.labels) if self.classes else self.spec.n_labels

    def keeps_head(self, start: Start) -> bool:
        """Whether the head of the start means what this run's head means, label by label."""
        if not self.classes or start.task != self.recipe.task:
            return super().keeps_head(start)
        return _meaning(self.stored_classes(start)) == _meaning(self.classes)

    def stored_classes(self, start: Start) -> Any:
        """Read what the outputs of the start's head mean."""
        return load_section(start.source, self.recipe.task, type(self.classes))

    def special_tokens(self, tokenizer: Tokenizer) -> list[str]:
        """Give new tokenizers a mask token, so that the encoder can be pre-trained."""
        return [] if self.start or "mask" in tokenizer.names else [MASK]

    def sequences(
        self,
        split: str,
        encode: Callable[[Sequence[Example]], dict[str, npt.NDArray[Any]]],
        key: Sequence[object],
        by_token: bool = False,
        why: str = "",
    ) -> SequenceItems:
        """Encode a split through the cache; `key` is what else the arrays depend on.

        Examples that `encode` counts as "dropped" are reported, and `why`.
        """
        config = self.config
        frame = [config.max_length, config.pair_separators, config.bos_id, config.eos_id]
        task = self.recipe.task
        shards = cached_examples(
            self.examples(split), [task, self.tokenizer.digest, frame, list(key)], encode
        )
        if why and (dropped := int(shards["dropped"].sum())):
            self.say(f"{split}: left out {dropped:,} of {len(self.examples(split)):,} {why}")
        return SequenceItems(
            shards.ragged("tokens"),
            shards["segments"],
            shards["labels"],
            self.special,
            by_token=by_token,
            digest=shards.digest,
        )


class ClassifyingJob(LabelJob[Example], ABC, Generic[Example]):
    """A job of `task = "classify"`, whether it reads texts or images."""

    def make_items(self) -> None:
        """Weigh all classes alike or, where the recipe balances them, by those trained on."""
        super().make_items()
        kind, labels = self.recipe.classify.kind, _known(self.train_items.labels)
        if kind == "number":
            self.objective = number
            return
        is_balanced = self.recipe.classify.weights == "balanced"
        same = np.ones(self.n_labels, np.float32)
        self.weights = balanced(labels, self.n_labels) if is_balanced else same
        weights, consistency = torch.from_numpy(self.weights), self.recipe.train.consistency
        if kind == "class":
            self.objective = one_class(weights, consistency, self.recipe.teacher)
        else:
            self.objective = many_classes(weights)

    def baseline(self) -> float:
        """Return the loss of predicting label frequencies."""
        kind, labels = self.recipe.classify.kind, _known(self.train_items.labels)
        if kind == "number":
            return float(np.var(labels))
        if kind == "class":
            return least_loss(np.bincount(labels) * self.weights / len(labels))
        share = labels.mean(0)
        outcomes = np.stack([self.weights * share, 1 - share], axis=1)  # (C, 2)
        return float(np.mean([least_loss(weights) for weights in outcomes]))


def _meaning(classes: Any) -> tuple[str, tuple[str, ...]]:
    return getattr(classes, "kind", ""), classes.labels


def _known(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return labels if labels.dtype != np.int64 else labels[labels != IGNORE]


def label_names(
    splits: Splits[Example], labels_of: Callable[[Example], Iterable[str]], least: int = 2
) -> tuple[str, ...]:
    """Return the labels of the training examples, sorted; others may not occur in other splits."""
    labels = sorted({label for example in splits.train for label in labels_of(example)})
    if len(labels) < least:
        only = f"only the label {labels[0]!r}" if labels else "no label at all"
        raise UserError(
            f"data: the training examples have {only}; give some with other labels, to tell "
            f"them apart."
        )
    for name, split in (("validation", splits.valid), ("test", splits.test)):
        unknown = {label for example in split for label in labels_of(example)} - set(labels)
        if unknown:
            raise UserError(
                f"data: the {name} examples have the label {min(unknown)!r}, which no "
                f"training example has; correct it, or train on some."
            )
    return tuple(labels)


def balanced(labels: npt.NDArray[Any], n_labels: int) -> npt.NDArray[np.float32]:
    """Weigh classes by inverse frequency; where there are several at once, each yes to its no."""
    if labels.ndim == 2:
        yes = labels.sum(0)
        return np.asarray((len(labels) - yes) / np.maximum(yes, 1), np.float32)
    counts = np.bincount(labels, minlength=n_labels)
    return np.asarray(len(labels) / (n_labels * np.maximum(counts, 1)), np.float32)


def least_loss(weights: npt.NDArray[Any]) -> float:
    """Return the least cross-entropy of one prediction for all outcomes of these weights."""
    return entropy(weights) * float(weights.sum())
