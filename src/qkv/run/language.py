"""Training a language model: text in, a decoder that goes on with it out."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from qkv.config import ModelConfig
from qkv.data import (
    Batch,
    Specials,
    Tokens,
    WindowMode,
    WindowStream,
    load_corpus,
    sample_text,
    window_batches,
)
from qkv.data.shards import check_corpus
from qkv.device import is_on
from qkv.evaluation import Score, language_scores
from qkv.model import Decoder
from qkv.run.job import Finished, Plan, fingerprint, model_config, text_length
from qkv.run.start import Start, find_start
from qkv.tasks import LanguageModel, Tokenizers
from qkv.tasks.folder import WEIGHTS, Prompting, save_config, save_weights
from qkv.text import Tokenizer, train_tokenizer
from qkv.training import build_loss, entropy, mean_loss, next_token
from qkv.training.loop import Scores
from qkv.training.step import LossSum
from qkv.weights import load_weights, read_tensors

TOKENIZER_TEXT = 20_000_000  # characters that a vocabulary is learnt from; more change little
MEASURED = 2_000_000  # tokens of a long validation text that are read while training goes on
COUNTED = 200_000  # tokens whose frequencies are counted


class Language:
    """The job of `task = "generate"`."""

    objective = staticmethod(next_token)

    def __init__(self, plan: Plan) -> None:
        recipe = plan.recipe
        self.plan, start = plan, find_start(recipe, "decoder")
        bos = start.prompting.bos if start else recipe.data.bos
        data = dataclasses.replace(recipe.data, bos=bos)
        check_corpus(data)  # before a vocabulary is learnt from it
        tokenizer = self._tokenizer(start)
        self.tokenizers = Tokenizers(tokenizer, tokenizer)
        # Whatever may be wrong with the model shows before a long text is read.
        self.config = config = fitting_config(plan, start, tokenizer)
        self.length = text_length(recipe, config)
        self.model = fresh_model(plan, config, start)
        with reading_bar("reading text") as progress:
            corpus = load_corpus(data, tokenizer, plan.folder, progress)
        self.splits = {"valid": corpus.valid} | ({"test": corpus.test} if corpus.test else {})
        plan.say(
            f"train: {len(corpus.train):,} tokens in {corpus.train.n_documents:,} documents; "
            f"valid: {len(corpus.valid):,} tokens"
        )
        prompting = dataclasses.replace(start.prompting, bos=bos) if start else Prompting(bos)
        self.speaker = LanguageModel(self.model, tokenizer, recipe.decode, prompting)
        self.rows = max(1, recipe.train.batch_tokens // self.length)
        self.one_shape = True
        self.stream = WindowStream(
            corpus.train,
            self.special,
            self.length,
            self.rows,
            self._mode(),
            recipe.data.across,
            recipe.train.accumulate,
            recipe.train.seed,
        )
        some = corpus.train.read(0, min(len(corpus.train), COUNTED))
        self.frequencies_loss = entropy(np.bincount(some))
        self.text = fingerprint(len(corpus.train), corpus.train.digest, corpus.valid.digest)
        self.loss_sum = eager_loss(plan, self.model)

    def _tokenizer(self, start: Start | None) -> Tokenizer:
        plan, data = self.plan, self.plan.recipe.data
        kept = plan.kept_tokenizers or (start.tokenizers if start else None)
        if kept:
            return kept.target
        texts = sample_text(data.text, data, TOKENIZER_TEXT)
        return train_tokenizer(texts, plan.recipe.tokenizer)

    @property
    def special(self) -> Specials:
        """The ids of the tokens that are not text."""
        return Specials(self.config.pad_id, self.config.bos_id, self.config.eos_id)

    def _mode(self) -> WindowMode:
        """Packed, where there is a kernel for it."""
        packed = is_on(self.plan.recipe.train.packing, self.plan.device)
        return "packed" if packed and self.config.can_pack else "rows"

    def _batches(self, tokens: Tokens, most: int) -> Iterator[Batch]:
        across = self.plan.recipe.data.across
        batches = window_batches(tokens, self.special, self.length, self.rows, self._mode(), across)
        for batch in islice(batches, max(1, most // (self.rows * self.length))):
            yield batch.to(self.plan.device)

    def _measured(self, tokens: Tokens, most: int) -> list[Score]:
        """Loss, perplexity and bits a byte over a text, or about the first `most` tokens of it."""
        loss, n_labels = total_loss(self.model, self.loss_sum, self._batches(tokens, most))
        share = min(1.0, max(most, self.rows * self.length) / len(tokens))
        return language_scores(loss, n_labels, max(round(tokens.n_bytes * share), 1))

    def evaluate(self) -> Scores:
        """Measure on the validation text; of one that is very long, on its beginning."""
        measured = self._measured(self.splits["valid"], MEASURED)
        loss, perplexity, bits = (score.value for score in measured)
        return {"valid_loss": loss, "perplexity": perplexity, "bits_per_byte": bits}

    def keep(self) -> None:
        """Make the run's folder a model folder of the weights as they are now."""
        save_speaker(self.plan, self.speaker)

    def finish(self) -> Finished:
        """Measure the best weights, in the precision that they were trained in."""
        path = self.plan.folder / WEIGHTS
        load_weights(self.model, read_tensors(path), path)
        scores = {name: self._measured(tokens, sys.maxsize) for name, tokens in self.splits.items()}
        return Finished(LanguageModel.load(self.plan.folder, self.plan.device), scores)


def fitting_config(plan: Plan, start: Start | None, tokenizer: Tokenizer) -> ModelConfig:
    """The model that the recipe, or the folder it begins from, describes."""
    if start:
        return start.model_config(plan.recipe, tokenizer)
    return model_config(plan.recipe, tokenizer)


def fresh_model(plan: Plan, config: ModelConfig, start: Start | None) -> Decoder:
    """A decoder with weights drawn by the seed, or those of the folder that it begins from."""
    torch.manual_seed(plan.recipe.train.seed)
    model = Decoder(config)
    if start:
        start.fill(model)
    return model.to(plan.device)


def eager_loss(plan: Plan, model: Decoder) -> LossSum:
    """The loss for validations, too few passes to be worth compiling once more."""
    return build_loss(model, dataclasses.replace(plan.recipe.train, compile="off"), plan.device)


def total_loss(model: Decoder, loss_sum: LossSum, batches: Iterator[Batch]) -> tuple[float, int]:
    """The loss summed over all labels of a text, and how many those are."""
    counted = 0

    def counting() -> Iterator[Batch]:
        nonlocal counted
        for batch in batches:
            counted += batch.n_labels
            yield batch

    mean = mean_loss(model, loss_sum, counting())
    return mean * counted, counted


def save_speaker(plan: Plan, speaker: LanguageModel) -> None:
    """Make the run's folder a language model's."""
    folder = plan.folder
    Tokenizers(speaker.tokenizer, speaker.tokenizer).save(folder)
    save_config(folder, "generate", speaker.model.config, speaker.decode, speaker.prompting)
    save_weights(folder, speaker.model)


@contextmanager
def reading_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar over bytes read on a terminal, shown once there is something to wait for."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None, visible=False)
        yield lambda done, total: progress.update(task, completed=done, total=total, visible=True)
