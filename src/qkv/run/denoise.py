"""Pre-training an encoder-decoder: plain text in, a model that mends spoilt text out."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from qkv.data import Batch, Mode, Specials, Tokens, load_corpus, sample_text
from qkv.data.denoise import Noise, NoiseStream, NoisyPassages, noisy_batches
from qkv.data.passages import Passages
from qkv.data.shards import check_corpus
from qkv.device import is_on
from qkv.errors import UserError
from qkv.evaluation import Score, language
from qkv.model import EncoderDecoder
from qkv.run.job import Finished, Plan, fingerprint, model_config, text_length
from qkv.run.language import MEASURED, TOKENIZER_TEXT, reading_bar
from qkv.run.start import Start, find_start
from qkv.run.understand import MASK
from qkv.tasks import Tokenizers, Translator
from qkv.tasks.folder import WEIGHTS, save_config, save_weights
from qkv.text import Tokenizer, train_tokenizer
from qkv.text.vocabulary import Vocabulary
from qkv.training import build_loss, label_entropy, mean_loss, next_token
from qkv.training.loop import Scores
from qkv.weights import load_weights, read_tensors

VALID_BATCH_TOKENS = 8192
SENTINEL = "<extra_id_{}>"  # T5's name for it
COUNTED = 2000  # passages of which the tokens to be written are counted
LEAST_LENGTH = 4  # BOS, and a token between two sentinels


class Denoising:
    """The job of `task = "denoise"`."""

    objective = staticmethod(next_token)

    def __init__(self, plan: Plan) -> None:
        recipe, data = plan.recipe, plan.recipe.data
        self.plan, start = plan, find_start(recipe, "encoder-decoder")
        check_corpus(data)  # before a vocabulary is learnt from it
        tokenizer = self._tokenizer(start)
        self.tokenizers = Tokenizers(tokenizer, tokenizer)
        self.config = (
            start.model_config(recipe, tokenizer) if start else model_config(recipe, tokenizer)
        )
        self.noise = Noise(recipe.denoise, self._marks(tokenizer))
        self.length = self._length()
        self.model = self._model(start)
        self.vocabulary = Vocabulary.of(tokenizer)
        if "start" not in tokenizer.names:  # T5's has none, and passages need none
            data = dataclasses.replace(data, bos=False)
        with reading_bar("reading text") as progress:
            corpus = load_corpus(data, tokenizer, plan.folder, progress)
        train = self._passages(corpus.train)
        self.splits = {"valid": self._passages(corpus.valid)}
        if corpus.test:
            self.splits["test"] = self._passages(corpus.test)
        plan.say(
            f"train: {len(corpus.train):,} tokens of {corpus.train.n_documents:,} documents in "
            f"{len(train):,} passages; valid: {len(corpus.valid):,} tokens"
        )
        self.one_shape = self.config.can_pack and is_on(recipe.train.packing, plan.device)
        mode: Mode = "packed" if self.one_shape else "padded"
        self.stream = NoiseStream(
            train,
            self.special,
            mode,
            recipe.train.batch_tokens,
            recipe.train.accumulate,
            recipe.train.seed,
        )
        self.frequencies_loss = label_entropy(train.draw(range(min(len(train), COUNTED)), 0, 0))
        self.text = fingerprint(len(corpus.train), corpus.train.digest, corpus.valid.digest)
        self._measure_on(corpus.valid)

    @property
    def special(self) -> Specials:
        """The ids of the tokens that are not text."""
        return Specials(self.config.pad_id, self.config.bos_id, self.config.eos_id)

    @property
    def _first(self) -> list[int]:
        """What stands before each text, on both sides."""
        return [] if self.config.start_id < 0 else [self.config.start_id]

    def _tokenizer(self, start: Start | None) -> Tokenizer:
        """The tokenizer of the run or of its start, or a new one; with marks for hidden spans."""
        recipe = self.plan.recipe
        kept = self.plan.kept_tokenizers or (start.tokenizers if start else None)
        if kept and not kept.shared:
            raise UserError(
                f"train.start_from: {recipe.train.start_from} has a vocabulary for each side, but "
                f"task = 'denoise' reads and writes the same text; begin from a model with one."
            )
        if not kept and not recipe.tokenizer.shared:
            raise UserError(
                "tokenizer: shared = false is not for task = 'denoise', which reads and writes the "
                "same text; leave it out."
            )
        texts = sample_text(recipe.data.text, recipe.data, TOKENIZER_TEXT)
        tokenizer = kept.target if kept else train_tokenizer(texts, recipe.tokenizer)
        if recipe.denoise.kind == "spans":
            tokenizer.add_special(self._sentinels)
        elif "mask" not in tokenizer.names:
            tokenizer.add_special([MASK])
        return tokenizer

    @property
    def _sentinels(self) -> list[str]:
        return [SENTINEL.format(number) for number in range(self.plan.recipe.denoise.sentinels)]

    def _marks(self, tokenizer: Tokenizer) -> np.ndarray:
        """What stands in the place of a hidden span: the first sentinel first, or the mask."""
        if self.plan.recipe.denoise.kind == "infill":
            return np.array([tokenizer.mask_id], np.int32)
        return np.array([tokenizer.special_id(name) for name in self._sentinels], np.int32)

    def _length(self) -> int:
        """The longest passage and its frame; all of its spans must have a sentinel."""
        length, config = text_length(self.plan.recipe, self.config), self.plan.recipe.denoise
        least = LEAST_LENGTH + len(self._first)
        if length < least:
            raise UserError(
                f"data.max_length ({length}) leaves no room for text between the special tokens; "
                f"raise it to {least} at least."
            )
        needed = int(self.noise.counts(np.array([length - 2]))[1][0]) + 1
        if config.kind == "spans" and needed > config.sentinels:
            raise UserError(
                f"denoise: a text of {length} tokens has up to {needed - 1} spans and needs a "
                f"sentinel for each and one for the end, but there are {config.sentinels}; raise "
                f"sentinels to {needed}, or lower share or data.max_length."
            )
        return length

    def _model(self, start: Start | None) -> EncoderDecoder:
        """Weights drawn by the seed, or those of the folder that the run begins from."""
        torch.manual_seed(self.plan.recipe.train.seed)
        model = EncoderDecoder(self.config)
        if start:
            start.fill(model)
        return model.to(self.plan.device)

    def _passages(self, tokens: Tokens) -> NoisyPassages:
        passages = Passages(tokens, self.special, self.vocabulary, self.length - len(self._first))
        return NoisyPassages(passages, self.noise, self._first)

    def _measure_on(self, valid: Tokens) -> None:
        """Lay out what validations need, once; of a very long text, its beginning."""
        config, device = self.plan.recipe.train, self.plan.device
        beginning = dataclasses.replace(valid, end=min(valid.end, valid.begin + MEASURED))
        self.batches = self._batches(self._passages(beginning))
        eager = dataclasses.replace(config, compile="off")  # these batches have many shapes
        self.loss_sum = build_loss(self.model, eager, device)

    def _batches(self, passages: NoisyPassages) -> list[Batch]:
        """All passages, always spoilt alike."""
        return noisy_batches(passages, VALID_BATCH_TOKENS, self.special)

    def _loss(self, batches: list[Batch]) -> float:
        device = self.plan.device
        return mean_loss(self.model, self.loss_sum, (batch.to(device) for batch in batches))

    def evaluate(self) -> Scores:
        """The loss of what is to be written for the validation text."""
        return {"valid_loss": self._loss(self.batches)}

    def _measured(self, passages: NoisyPassages) -> list[Score]:
        batches = self._batches(passages)
        n_labels = sum(batch.n_labels for batch in batches)
        nats = self._loss(batches) * n_labels
        return [language.loss(nats, n_labels), language.perplexity(nats, n_labels)]

    def keep(self) -> None:
        """Make the run's folder a model folder of the weights as they are now."""
        folder, recipe = self.plan.folder, self.plan.recipe
        self.tokenizers.save(folder)
        save_config(folder, recipe.task, self.config, recipe.decode)
        save_weights(folder, self.model)

    def finish(self) -> Finished:
        """Measure the best weights, in the precision that they were trained in."""
        path = self.plan.folder / WEIGHTS
        load_weights(self.model, read_tensors(path), path)
        scores = {name: self._measured(passages) for name, passages in self.splits.items()}
        return Finished(Translator.load(self.plan.folder, self.plan.device), scores)
