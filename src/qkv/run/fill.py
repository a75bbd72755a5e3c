"""Masked language modelling: plain text in, an encoder that fills gaps (and judges pairs) out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from qkv.data import Batch, MaskedItems, Masker, Passages
from qkv.device import mixed_precision
from qkv.errors import UserError
from qkv.evaluation import Score, loss, perplexity
from qkv.run.job import TextJob
from qkv.tasks import Encoder
from qkv.text import MASK, Tokenizer, Vocabulary
from qkv.training import entropy, layout_of, masked_tokens


class FillJob(TextJob):
    """The job of `task = "fill"`."""

    def special_tokens(self, tokenizer: Tokenizer) -> list[str]:
        """Name the mask token."""
        return [] if "mask" in tokenizer.names else [MASK]

    @property
    def paired(self) -> bool:
        """Whether the model also judges pairs of texts."""
        return self.recipe.mask.pairs != "none"

    def head(self) -> dict[str, Any]:
        """Predict masked tokens and, where there are pairs, judge them."""
        return {"head": "masked", "pair_head": self.paired}

    def build_result(self, model: Any) -> Encoder:
        """Build an encoder; its vocabulary tells where words and sentences begin."""
        self.vocabulary = Vocabulary.of(self.tokenizer)
        self.masker = Masker(
            self.recipe.mask,
            self.tokenizer.mask_id,
            self.vocabulary.special,
            self.vocabulary.word_starts,
        )
        # A pair counts for as much as all masked tokens of a text of full length.
        weight = self.recipe.mask.share * self._length() if self.paired else 0.0
        self.objective = masked_tokens(weight)
        return Encoder(model, self.tokenizer, self.recipe.embed)

    def _length(self) -> int:
        return self.max_length(least=4 + self.config.pair_separators if self.paired else 3)

    def encode(self, split: str) -> MaskedItems:
        """Cut a text into passages; what is wrong with it shows before training begins."""
        tokens, special = self.tokens(split), self.vocabulary.special
        if special[tokens.read(0, min(len(tokens), 200_000))].all():
            raise UserError(
                f"data: the {split} text has no tokens that could be masked and predicted; give "
                f"other text, or a tokenizer that knows its characters."
            )
        passages = Passages(
            tokens,
            self.special,
            self.vocabulary,
            self._length(),
            self.recipe.mask.pairs,
            self.config.pair_separators,
            f"the {split} text",
        )
        return MaskedItems(passages, self.masker)

    def baseline(self) -> float:
        """Return the loss of predicting token frequencies."""
        counts = self.token_counts()
        return entropy(counts * ~self.vocabulary.special[: len(counts)])

    def text_scores(self, split: str, batches: Iterable[Batch]) -> list[Score]:
        """Measure how well masked tokens are predicted, and pairs judged."""
        totals = np.zeros(5)
        self.model.eval()
        with torch.inference_mode(), mixed_precision(self.recipe.train, self.device):
            for batch in self.workers.share(batches):
                totals += self._counts(batch.to(self.device))
        self.model.train()
        nats, right, n_tokens, right_pairs, n_pairs = self.workers.reduce_sum(*totals.tolist())
        n_tokens = round(n_tokens)
        scores = [
            loss(nats, n_tokens),
            perplexity(nats, n_tokens),
            Score("accuracy", 100 * right / n_tokens),
        ]
        if n_pairs:
            scores.append(Score("pair accuracy", 100 * right_pairs / n_pairs))
        return scores

    def _counts(self, batch: Batch) -> tuple[float, int, int, int, int]:
        """Return the loss of a batch, and of its masked tokens and pairs those right and all."""
        model, side = self.model, batch.target
        x = model(side.tokens, layout_of(side), side.segments, then=lambda hidden: hidden)
        logits = model.head(x.flatten(0, 1)[batch.positions]).float()
        nats = float(F.cross_entropy(logits, batch.labels, reduction="sum").double())
        right = int((logits.argmax(-1) == batch.labels).sum())
        if batch.pairs is None or model.pair_head is None:
            return nats, right, batch.n_labels, 0, 0
        judged = model.pair_head(model.pooler(x, layout_of(side))).argmax(-1)
        real = batch.pairs >= 0
        right_pairs = int((judged[real] == batch.pairs[real]).sum())
        return nats, right, batch.n_labels, right_pairs, int(real.sum())
