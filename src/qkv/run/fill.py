"""Masked language modelling: plain text in, an encoder that fills gaps (and judges pairs) out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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

<<<<<<< HEAD
    def special_tokens(self, tokenizer: Tokenizer) -> list[str]:
        """Name the mask token."""
        return [] if "mask" in tokenizer.names else [MASK]
=======
    def __init__(self, plan: Plan) -> None:
        recipe = plan.recipe
        self.plan, start = plan, find_start(recipe, "encoder")
        data = recipe.data
        check_corpus(data)  # before a vocabulary is learnt from it
        tokenizer = encoder_tokenizer(
            plan,
            start,
            lambda: sample_text(
                data.text, TOKENIZER_TEXT, [data.text_field], data.template, data.documents
            ),
        )
        self.tokenizers = Tokenizers(tokenizer, tokenizer)
        paired = recipe.mask.pairs != "none"
        self.config = encoder_config(plan, start, tokenizer, head="masked", pair_head=paired)
        self.length = self._length(paired)
        self.model = fresh_encoder(plan, self.config, start)
        self.verb = EncoderTask(self.model, tokenizer, recipe.embed)
        self.vocabulary = Vocabulary.of(tokenizer)
        self.masker = Masker(
            recipe.mask, tokenizer.mask_id, self.vocabulary.special, self.vocabulary.word_starts
        )
        with reading_bar("reading text") as progress:
            corpus = load_corpus(data, tokenizer, plan.folder, progress)
        passages = self._passages(corpus.train, "training")
        self.splits = {"valid": self._passages(corpus.valid, "validation")}
        if corpus.test:
            self.splits["test"] = self._passages(corpus.test, "test")
        plan.say(
            f"train: {len(corpus.train):,} tokens of {corpus.train.n_documents:,} documents in "
            f"{len(passages):,} passages; valid: {len(corpus.valid):,} tokens"
        )
        mode = self._mode()
        self.one_shape = mode == "packed"
        self.stream = PassageStream(
            passages,
            self.masker,
            mode,
            recipe.train.batch_tokens,
            recipe.train.accumulate,
            recipe.train.seed,
        )
        # A pair counts for as much as all that is hidden in a text of full length.
        self.objective = hidden_tokens(recipe.mask.share * self.length if paired else 0.0)
        some = corpus.train.read(0, min(len(corpus.train), COUNTED))
        self.frequencies_loss = entropy(np.bincount(some[~self.vocabulary.special[some]]))
        self.text = fingerprint(len(corpus.train), corpus.train.digest, corpus.valid.digest)
        end = min(corpus.valid.end, corpus.valid.begin + MEASURED)
        beginning = dataclasses.replace(corpus.valid, end=end)
        self.batches = self._batches(self._passages(beginning, "validation"))
>>>>>>> formats

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

    def save(self) -> None:
        """Write the run folder as a model folder."""
        self.result.save(self.plan.folder, "fill")

    def text_scores(self, split: str, batches: Iterable[Batch]) -> list[Score]:
        """Measure how well masked tokens are predicted, and pairs judged."""
        counts = _Counts()
        self.model.eval()
        with torch.inference_mode(), mixed_precision(self.recipe.train, self.plan.device):
            for batch in batches:
                counts.add(self.model, batch.to(self.plan.device))
        self.model.train()
        return counts.scores()


class _Counts:
    """Predictions of a model, added up over batches."""

    def __init__(self) -> None:
        self.nats = 0.0
        self.right = self.n_tokens = self.right_pairs = self.n_pairs = 0

    def add(self, model: Any, batch: Batch) -> None:
        """Count one batch's masked tokens and pairs."""
        side = batch.target
        x = model(side.tokens, layout_of(side), side.segments, then=lambda hidden: hidden)
        logits = model.head(x.flatten(0, 1)[batch.positions]).float()
        self.nats += float(F.cross_entropy(logits, batch.labels, reduction="sum").double())
        self.right += int((logits.argmax(-1) == batch.labels).sum())
        self.n_tokens += batch.n_labels
        if batch.pairs is not None and model.pair_head is not None:
            judged = model.pair_head(model.pooler(x, layout_of(side))).argmax(-1)
            real = batch.pairs >= 0
            self.right_pairs += int((judged[real] == batch.pairs[real]).sum())
            self.n_pairs += int(real.sum())

    def scores(self) -> list[Score]:
        """Return loss, perplexity and accuracy of masked tokens, and accuracy on pairs."""
        scores = [
            loss(self.nats, self.n_tokens),
            perplexity(self.nats, self.n_tokens),
            Score("accuracy", 100 * self.right / self.n_tokens),
        ]
        if self.n_pairs:
            scores.append(Score("pair accuracy", 100 * self.right_pairs / self.n_pairs))
        return scores
