"""Pre-training an encoder: plain text in, a model that fills gaps (and judges pairs) out."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from qkv.data import Batch, Mode, Specials, Tokens, load_corpus, sample_text
from qkv.data.corruption import Masker
from qkv.data.passages import Passages, PassageStream, passage_batches
from qkv.data.shards import check_corpus
from qkv.device import is_on, mixed_precision
from qkv.errors import UserError
from qkv.evaluation import Score, language
from qkv.model import Encoder
from qkv.run.job import Finished, Plan, fingerprint, text_length
from qkv.run.language import COUNTED, MEASURED, TOKENIZER_TEXT, reading_bar
from qkv.run.start import find_start
from qkv.run.understand import encoder_config, encoder_tokenizer, fresh_encoder
from qkv.tasks import Tokenizers
from qkv.tasks.encoder import Encoder as EncoderTask
from qkv.tasks.folder import WEIGHTS
from qkv.text.vocabulary import Vocabulary
from qkv.training import entropy, hidden_tokens, layout_of
from qkv.training.loop import Scores
from qkv.training.objectives import at_places, encoded
from qkv.weights import load_weights, read_tensors

VALID_BATCH_TOKENS = 8192


class Filling:
    """The job of `task = "fill"`."""

    def __init__(self, plan: Plan) -> None:
        recipe = plan.recipe
        self.plan, start = plan, find_start(recipe, "encoder")
        data = recipe.data
        check_corpus(data)  # before a vocabulary is learnt from it
        tokenizer = encoder_tokenizer(
            plan, start, lambda: sample_text(data.text, data, TOKENIZER_TEXT)
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

    @property
    def special(self) -> Specials:
        """The ids of the tokens that are not text."""
        return Specials(self.config.pad_id, self.config.bos_id, self.config.eos_id)

    def _length(self, paired: bool) -> int:
        """The longest passage, which must have room for something to hide."""
        length = text_length(self.plan.recipe, self.config)
        least = 4 + self.config.pair_separators if paired else 3
        if length < least:
            raise UserError(
                f"data.max_length ({length}) leaves no room for text between the special tokens; "
                f"raise it to {least} at least."
            )
        return length

    def _passages(self, tokens: Tokens, use: str) -> Passages:
        """Cut a text; what is wrong with it shows before a model is trained, not when it is."""
        if self.vocabulary.special[tokens.read(0, min(len(tokens), COUNTED))].all():
            raise UserError(
                f"data: the {use} text has no tokens that could be hidden and guessed; give other "
                f"text, or a tokenizer that knows its characters."
            )
        return Passages(
            tokens,
            self.special,
            self.vocabulary,
            self.length,
            self.plan.recipe.mask.pairs,
            self.config.pair_separators,
            f"the {use} text",
        )

    def _mode(self) -> Mode:
        """Packed, where there is a kernel for it."""
        packing = is_on(self.plan.recipe.train.packing, self.plan.device)
        return "packed" if self.config.can_pack and packing else "padded"

    def _batches(self, passages: Passages) -> list[Batch]:
        """All passages, always masked alike."""
        return passage_batches(passages, self.masker, VALID_BATCH_TOKENS)

    def evaluate(self) -> Scores:
        """Measure on the validation text; of one that is very long, on its beginning."""
        names = {"loss": "valid_loss", "accuracy": "accuracy", "pair accuracy": "pair_accuracy"}
        scores = self._measured(self.batches)
        return {names[score.name]: score.value for score in scores if score.name in names}

    def _measured(self, batches: list[Batch]) -> list[Score]:
        """How well hidden tokens are guessed, and which pairs are true."""
        counts = Counts()
        self.model.eval()
        with torch.inference_mode(), mixed_precision(self.plan.recipe.train, self.plan.device):
            for batch in batches:
                counts.add(self.model, batch.to(self.plan.device))
        self.model.train()
        return counts.scores()

    def keep(self) -> None:
        """Make the run's folder a model folder of the weights as they are now."""
        self.verb.save(self.plan.folder, "fill")

    def finish(self) -> Finished:
        """Measure the best weights, in the precision that they were trained in."""
        path = self.plan.folder / WEIGHTS
        load_weights(self.model, read_tensors(path), path)
        scores = {
            name: self._measured(self._batches(passages)) for name, passages in self.splits.items()
        }
        return Finished(EncoderTask.load(self.plan.folder, self.plan.device), scores)


class Counts:
    """What a model guesses of a text's batches, summed up."""

    def __init__(self) -> None:
        self.nats = 0.0
        self.right = self.n_tokens = self.right_pairs = self.n_pairs = 0

    def add(self, model: Encoder, batch: Batch) -> None:
        """Count one batch's hidden tokens and pairs."""
        x = encoded(model, batch.target)
        logits = model.head(at_places(x, batch)).float()
        self.nats += float(
            torch.nn.functional.cross_entropy(logits, batch.labels, reduction="sum").double()
        )
        self.right += int((logits.argmax(-1) == batch.labels).sum())
        self.n_tokens += batch.n_labels
        if batch.pairs is not None and model.pair_head is not None:
            said = model.pair_head(model.pooler(x, layout_of(batch.target))).argmax(-1)
            real = batch.pairs >= 0
            self.right_pairs += int((said[real] == batch.pairs[real]).sum())
            self.n_pairs += int(real.sum())

    def scores(self) -> list[Score]:
        """Loss, perplexity and accuracy of hidden tokens, and accuracy on pairs."""
        found = [
            language.loss(self.nats, self.n_tokens),
            language.perplexity(self.nats, self.n_tokens),
            Score("accuracy", 100 * self.right / self.n_tokens),
        ]
        if self.n_pairs:
            found.append(Score("pair accuracy", 100 * self.right_pairs / self.n_pairs))
        return found
