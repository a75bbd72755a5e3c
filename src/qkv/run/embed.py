"""Contrastive training: texts that belong together in, an encoder that places them together out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.data import Ragged, Splits, TwinItems, cached_examples, read_texts
from qkv.errors import UserError
from qkv.run.labels import LabelJob
from qkv.tasks import Encoder
from qkv.training import contrast

Texts = tuple[str, ...]


class EmbedJob(LabelJob[Texts]):
    """The job of `task = "embed"`.

    A single text is its own twin: dropout makes the two different (Gao et al. 2021).
    """

    result: Encoder

    def read_splits(self) -> Splits[Texts]:
        """Read pairs of texts, or single texts."""
        data = self.recipe.data
        splits = self.split(
            lambda paths: self._whole(read_texts(paths, data.text_field, data.label_field)),
            key=lambda texts: texts[0],
        )
        if self.recipe.train.metric == "accuracy" and len(splits.valid[0]) != 2:
            raise UserError(
                "train: metric = 'accuracy' is how often a text's other half is found, but the "
                "validation examples are no pairs; use metric = 'loss'."
            )
        return splits

    def _whole(self, examples: list[Texts]) -> list[Texts]:
        """Drop pairs of which one text is missing."""
        whole = [texts for texts in examples if all(texts)]
        if not whole:
            raise UserError("data: all pairs of examples lack one of their texts.")
        if len(whole) < len(examples):
            self.say(f"dropped {len(examples) - len(whole):,} pairs that lack a text")
        return whole

    def texts(self) -> Iterable[str]:
        """Yield all training texts."""
        return (text for texts in self.splits.train for text in texts)

    def build_result(self, model: Any) -> Encoder:
        """Build an encoder."""
        settings = self.recipe.embed
        self.objective = contrast(settings.pooling, settings.temperature, self.workers)
        return Encoder(model, self.tokenizer, settings)

    def encode(self, split: str) -> TwinItems:
        """Encode both texts of each pair, cut to the model's length."""
        reader, examples = self.result.reader, self.examples(split)

        def encode(some: Sequence[Texts]) -> dict[str, npt.NDArray[Any]]:
            arrays: dict[str, npt.NDArray[Any]] = {}
            for name, side in (("first", 0), ("second", -1)):
                ids = reader.encode([texts[side] for texts in some])
                framed = [reader.frame(row[: reader.room()]).tokens for row in ids]
                arrays |= Ragged.of(framed).arrays(name)
            return arrays

        config = self.config
        key = ["embed", self.tokenizer.digest, config.max_length, config.bos_id, config.eos_id]
        shards = cached_examples(examples, key, encode)
        groups = [numbered([texts[side] for texts in examples]) for side in (0, -1)]
        first, second = shards.ragged("first"), shards.ragged("second")
        return TwinItems(first, second, np.stack(groups, axis=1), self.special, shards.digest)

    def baseline(self) -> float:
        """Return the loss of finding all texts of a validation batch equally similar."""
        choices = [
            math.log(len(batch.labels) - same + 1)
            for batch in self.valid_batches
            for same in (batch.labels[:, None] == batch.labels).any(dim=-1).sum(dim=1).tolist()
        ]
        return float(np.mean(choices))


def numbered(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Number texts; equal ones have equal numbers."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
