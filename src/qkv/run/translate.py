"""Translation: sentence pairs in, an encoder-decoder out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import chain
from typing import Any

from qkv.config import TASKS, DataConfig
from qkv.convert import Tokenizers
from qkv.data import (
    Pair,
    PairItems,
    SegmentedPairs,
    Splits,
    encode_pairs,
    filter_pairs,
    read_pairs,
    read_splits,
    repeated,
)
from qkv.errors import UserError
from qkv.evaluation import Score, bleu, exact_match
from qkv.run.job import SCORED, ExampleJob
from qkv.tasks import Translator
from qkv.text import train_pair
from qkv.training import with_wrong_sources

FEW_PAIRS = 100_000  # what decides with so few is how the model is kept from overfitting


def _source(pair: Pair) -> str:
    return pair[0]


class TranslateJob(ExampleJob[Pair]):
    """The job of `task = "translate"`."""

    result: Translator
    train_items: PairItems | SegmentedPairs

    def read_splits(self) -> Splits[Pair]:
        """Read pairs; all pairs of one source are in the same split, and none is synthetic."""
        data, seed = self.recipe.data, self.recipe.train.seed
        if data.corpus == "demo":
            return demo_splits(data)

        def read(prefix: str) -> list[Pair]:
            paths = [getattr(data, prefix + name) for name in self.spec.files]
            if not any(paths):
                return []
            source, target, pairs = paths
            fields = data.source_field, data.target_field
            return read_pairs(source, target, pairs, *fields, prefix)

        splits = read_splits(read, "pairs", data.valid_size, seed, key=_source)
        for sentence in repeated(splits, "pairs", _source):
            self.say(sentence)
        return splits

    def read_data(self) -> None:
        """Also read the synthetic pairs, which are trained on alone."""
        super().read_data()
        data = self.recipe.data
        synthetic = read_pairs(pairs=data.synthetic) if data.synthetic else []
        if synthetic:
            self.say(f"train: {len(synthetic):,} synthetic pairs, {data.repeat} × the others")
        train = [*self.splits.train * data.repeat, *synthetic]
        self.splits = dataclasses.replace(self.splits, train=train)
        if (
            len(train) < FEW_PAIRS
            and self.device.type == "cuda"
            and not self.recipe.train.consistency
        ):
            self.say(
                f"{len(train):,} pairs are few: the settings of recipes/multi30k.toml "
                "(train.consistency = 5 above all) may score better"
            )

    def texts(self) -> Iterable[str]:
        """Yield both sides."""
        return chain.from_iterable(self.splits.train)

    def train_tokenizers(self) -> Tokenizers:
        """Train one tokenizer for both sides, or one for each."""
        sources = (source for source, _ in self.splits.train)
        targets = (target for _, target in self.splits.train)
        return Tokenizers(*train_pair(sources, targets, self.recipe.tokenizer))

    def build_result(self, model: Any) -> Translator:
        """Build a translator."""
        assert self.tokenizers is not None
        return Translator(model, self.tokenizers, self.recipe.decode)

    def encode(self, split: str) -> PairItems | SegmentedPairs:
        """Encode the pairs of a split, and drop those that are empty, too long or too unlike."""
        assert self.tokenizers is not None
        sides = self.tokenizers.source, self.tokenizers.target
        dropout = self.recipe.data.bpe_dropout
        by_word, limit = split == "train" and dropout > 0, self.max_length()
        given = self.examples(split), *sides, self.special, self.result.first
        items = encode_pairs(*given, by_word)
        items, sentence = filter_pairs(items, limit, self.recipe.data.max_ratio)
        self.say(f"{split}: {sentence}")
        if not by_word:
            return items
        return SegmentedPairs(items, sides, dropout, limit, self.recipe.train.seed)

    def make_stream(self) -> None:
        """Also lay out validation batches with wrong sources."""
        super().make_stream()
        self.wrong_batches = with_wrong_sources(self.valid_batches)

    def evaluate(self) -> dict[str, float]:
        """Also measure the loss with wrong sources, which must be worse."""
        scores = super().evaluate()
        if self.wrong_batches:
            scores["wrong_source_loss"] = self.loss(self.wrong_batches)
        return scores

    def valid_scores(self) -> list[Score]:
        """Translate some validation sources greedily."""
        if not self.recipe.train.valid_bleu:
            return []
        sources, references = zip(*self.splits.valid[:SCORED], strict=True)
        outputs = self.spread_result().translate(
            list(sources), beams=1, n_best=1, sample=False, truncate=True
        )
        return [bleu(outputs, list(references)), exact_match(outputs, list(references))]


def demo_splits(data: DataConfig) -> Splits[Pair]:
    """Return the packaged sentences, whose held-out part is the same for every seed."""
    for prefix in ("", "valid_", "test_"):
        for name in TASKS["translate"].files:
            if getattr(data, prefix + name):
                raise UserError(
                    f"data: corpus = 'demo' has its own text, but {prefix}{name} is given too; "
                    f"remove one of them."
                )
    # Imported here, because no other corpus needs its grammar.
    from qkv.demo import demo_corpus

    corpus = demo_corpus()
    return Splits(corpus.train, corpus.valid, corpus.test)
