"""Denoising: plain text in, an encoder-decoder that reconstructs corrupted text out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from qkv.convert import Tokenizers
from qkv.data import Batch, Noise, NoisyItems, Passages
from qkv.errors import UserError
from qkv.evaluation import Score, loss, perplexity
from qkv.run.job import TextJob
from qkv.tasks import Translator
from qkv.text import MASK, Tokenizer, Vocabulary
from qkv.training import entropy

SENTINEL = "<extra_id_{}>"  # T5's name for it
COUNTED = 2000  # passages whose target tokens are counted
LEAST_LENGTH = 4  # BOS, and a token between two sentinels


class DenoiseJob(TextJob):
    """The job of `task = "denoise"`."""

    result: Translator

    def train_tokenizers(self) -> Tokenizers:
        """Train one tokenizer, for both sides are the same text."""
        if not self.recipe.tokenizer.shared:
            raise UserError("tokenizer: task = 'denoise' needs shared = true; leave it out.")
        return super().train_tokenizers()

    def make_tokenizer(self) -> None:
        """Refuse a start with two vocabularies, and encode text without BOS if there is none."""
        super().make_tokenizer()
        assert self.tokenizers is not None
        if not self.tokenizers.shared:
            raise UserError(
                f"train.start_from: {self.recipe.train.start_from} has a vocabulary for each side, "
                f"but task = 'denoise' reads and writes the same text; start from a model with one."
            )
        if "start" not in self.tokenizer.names:  # as T5's; passages need none
            self.data = dataclasses.replace(self.data, bos=False)

    def special_tokens(self, tokenizer: Tokenizer) -> list[str]:
        """Name the sentinels, or the mask token."""
        if self.recipe.denoise.kind == "spans":
            return self._sentinels
        return [] if "mask" in tokenizer.names else [MASK]

    @property
    def _sentinels(self) -> list[str]:
        return [SENTINEL.format(number) for number in range(self.recipe.denoise.sentinels)]

    def build_result(self, model: Any) -> Translator:
        """Build what generates the text, and the noise that hides it."""
        assert self.tokenizers is not None
        spans = self.recipe.denoise.kind == "spans"
        marks = [self.tokenizer.special_id(name) for name in self._sentinels] if spans else []
        ids = np.array(marks or [self.tokenizer.mask_id], np.int32)
        self.noise = Noise(self.recipe.denoise, ids)
        self.vocabulary = Vocabulary.of(self.tokenizer)
        result = Translator(model, self.tokenizers, self.recipe.decode)
        self.length = self.max_length(LEAST_LENGTH + len(result.first))
        needed = int(self.noise.counts(np.array([self.length - 2]))[1][0]) + 1
        if spans and needed > len(marks):
            raise UserError(
                f"denoise: a text of {self.length} tokens has up to {needed - 1} spans and needs a "
                f"sentinel for each and one for the end, but there are {len(marks)}; raise "
                f"sentinels to {needed}, or lower share or data.max_length."
            )
        return result

    def encode(self, split: str) -> NoisyItems:
        """Cut a text into passages that are corrupted anew each epoch."""
        first = self.result.first
        length = self.length - len(first)
        passages = Passages(self.tokens(split), self.special, self.vocabulary, length)
        return NoisyItems(passages, self.noise, first)

    def baseline(self) -> float:
        """Return the loss of predicting the frequencies of target tokens."""
        count = min(len(self.train_items), COUNTED)
        _, target = self.train_items.draw(range(count), np.random.default_rng(0))
        return entropy(np.append(np.bincount(target.tokens), count))  # each target ends once

    def save(self) -> None:
        """Write the run folder as a model folder."""
        self.result.save(self.folder, "denoise")

    def text_scores(self, split: str, batches: Iterable[Batch]) -> list[Score]:
        """Measure loss and perplexity of the generated text."""
        total = self.total_loss(batches)
        return [loss(*total), perplexity(*total)]
