"""Parts that jobs on labelled examples share: encoding through the cache, labels, weights."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from qkv.data import SequenceItems, Splits, cached_examples
from qkv.errors import UserError
from qkv.run.job import Example, ExampleJob
from qkv.text import MASK, Tokenizer
from qkv.training import entropy


class LabelJob(ExampleJob[Example], ABC, Generic[Example]):
    """A job that puts a head on an encoder and trains it on labelled examples."""

    def special_tokens(self, tokenizer: Tokenizer) -> list[str]:
        """Give new tokenizers a mask token, so that the encoder can be pre-trained."""
        return [] if self.start or "mask" in tokenizer.names else [MASK]

    def class_weights(self, labels: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Weigh all classes alike or, where the recipe balances them, by those trained on."""
        if self.recipe.classify.weights == "balanced":
            return balanced(labels, self.n_labels)
        return np.ones(self.n_labels, np.float32)

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
