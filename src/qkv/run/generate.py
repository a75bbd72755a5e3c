"""Language modelling: plain text in, a decoder that continues text out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from qkv.convert import Prompting
from qkv.data import Batch, WindowItems
from qkv.evaluation import Score, language_scores
from qkv.run.job import TextJob
from qkv.tasks import LanguageModel
from qkv.training import entropy


class GenerateJob(TextJob):
    """The job of `task = "generate"`."""

    def read_data(self) -> None:
        """Begin documents with BOS as the model does that the run starts from."""
        super().read_data()
        if self.start:
            self.data = dataclasses.replace(self.data, bos=self.start.prompting.bos)

    def build_result(self, model: Any) -> LanguageModel:
        """Build a language model."""
        prompting = self.start.prompting if self.start else Prompting(self.data.bos)
        return LanguageModel(model, self.tokenizer, self.recipe.decode, prompting)

    def encode(self, split: str) -> WindowItems:
        """Cut a text into windows; what is validated with, side by side."""
        return WindowItems(
            self.tokens(split),
            self.special,
            self.max_length(),
            across=self.data.across,
            in_order=split != "train",
            seed=self.recipe.train.seed,
        )

    @property
    def valid_tokens(self) -> int:
        """Tokens of a validation batch: few where training batches have few."""
        return min(super().valid_tokens, max(self.recipe.train.batch_tokens, 512))

    def baseline(self) -> float:
        """Return the loss of predicting token frequencies."""
        return entropy(self.token_counts())

    def text_scores(self, split: str, batches: Iterable[Batch]) -> list[Score]:
        """Measure loss, perplexity and bits per byte of the text that is predicted."""
        n_read = 0

        def counted() -> Iterable[Batch]:
            nonlocal n_read
            for batch in batches:
                n_read += batch.target.tokens.numel()
                yield batch

        total, n_labels = self.total_loss(counted())
        tokens = self.tokens(split)
        # Without BOS, the first token of what is read together is predicted from nothing, and so
        # not counted: that of each document or, where these see each other, of the whole text.
        first = int(tokens.read(0, 1)[0])
        unpredicted = self.tokenizer.n_bytes(first) if self.data.across else tokens.first_bytes
        n_bytes = tokens.n_bytes - unpredicted
        share = min(1.0, n_read / (len(tokens) - 1))
        return language_scores(total, n_labels, max(round(n_bytes * share), 1))
