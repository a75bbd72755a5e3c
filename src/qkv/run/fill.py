"""Masked language modelling: plain text in, an encoder that fills gaps (and judges pairs) out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qkv.data import Batch, MaskedItems, Masker
from qkv.device import mixed_precision
from qkv.evaluation import Score
from qkv.evaluation.gaps import gap_scores, gap_totals
from qkv.run.job import TextJob
from qkv.tasks import Encoder
from qkv.text import MASK, Tokenizer, Vocabulary
from qkv.training import entropy, masked_tokens


class FillJob(TextJob):
    """The job of `task = "fill"`."""

    def special_tokens(self, tokenizer: Tokenizer) -> list[str]:
        """Name the mask token."""
        return [] if "mask" in tokenizer.names else [MASK]

    @property
    def paired(self) -> bool:
        """Whether the model also judges pairs of texts."""
        return self.recipe.mask.pairs != "none"

    def build_result(self, model: Any) -> Encoder:
        """Build an encoder; its vocabulary tells where words and sentences begin."""
        self.vocabulary = Vocabulary.of(self.tokenizer)
        self.masker = Masker.of(self.recipe.mask, self.tokenizer, self.vocabulary)
        # A pair counts for as much as all masked tokens of a text of full length.
        weight = self.recipe.mask.share * self._length() if self.paired else 0.0
        self.objective = masked_tokens(weight)
        return Encoder(model, self.tokenizer, self.recipe.embed)

    def _length(self) -> int:
        least = MaskedItems.least_length(self.recipe.mask, self.config.pair_separators)
        return self.max_length(least)

    def encode(self, split: str) -> MaskedItems:
        """Cut a text into passages; what is wrong with it shows before training begins."""
        return MaskedItems.of(
            self.tokens(split),
            self.special,
            self.vocabulary,
            self.masker,
            self._length(),
            self.config.pair_separators,
            f"the {split} text",
        )

    def baseline(self) -> float:
        """Return the loss of predicting token frequencies."""
        counts = self.token_counts()
        return entropy(counts * ~self.vocabulary.special[: len(counts)])

    def text_scores(self, split: str, batches: Iterable[Batch]) -> list[Score]:
        """Measure how well masked tokens are predicted, and pairs judged."""
        with mixed_precision(self.recipe.train, self.device):
            totals = gap_totals(self.model, self.workers.share(batches), self.device)
        return gap_scores(*self.workers.reduce_sum(*totals))
