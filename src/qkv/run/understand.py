"""What the jobs have in common that put a head on an encoder and teach it from examples."""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import torch

from qkv.config import ModelConfig, Recipe
from qkv.data import Batch, Sequences, SequenceStream, Specials, sequence_batches
from qkv.data.splits import Splits
from qkv.device import mixed_precision
from qkv.errors import UserError
from qkv.evaluation import Score
from qkv.model import Encoder, LabelHead
from qkv.run.job import Finished, Plan, fingerprint, model_config
from qkv.run.start import Start, Weights, find_start
from qkv.tasks.folder import Tokenizers, Where, load_config
from qkv.text import Tokenizer, train_tokenizer
from qkv.training import Objective, build_loss, mean_loss
from qkv.training.loop import Scores, Stream

VALID_BATCH_TOKENS = 4096
MASK = "<mask>"
NO_HEAD: dict[str, Any] = {"head": "none", "n_labels": 0, "pair_head": False}
Example = TypeVar("Example")
Verb = TypeVar("Verb")
Items = TypeVar("Items")  # examples as they are laid out: `Sequences`, or what a job makes of them


class Understanding(ABC, Generic[Example, Verb, Items]):
    """A job that reads examples, builds a headed encoder, and is measured by its verb's object.

    A task says what its examples are (`read`), which words they hold (`texts`), which head they
    need (`head`), what object answers (`build`), what it learns from (`lay_out`), what the loss is
    (`objective`), and how well the object does on a split (`measure`).
    """

    one_shape = False  # padded batches have many

    def __init__(self, plan: Plan) -> None:
        self.plan, recipe = plan, plan.recipe
        self.splits = self.read()
        self.say_counts()
        start = find_start(recipe, "encoder")
        tokenizer = encoder_tokenizer(plan, start, self.texts)
        self.tokenizers = Tokenizers(tokenizer, tokenizer)
        self.config = encoder_config(plan, start, tokenizer, **self.head())
        self._check_length()
        keep_head = start is not None and self.keeps_head(start.source)
        self.model = fresh_encoder(plan, self.config, start, keep_head)
        self.verb = self.build(self.model, tokenizer)
        train, valid = self.lay_out(self.splits.train), self.lay_out(self.splits.valid)
        self.stream = self.stream_of(train)
        self.objective = self.objective_of(train)
        eager = dataclasses.replace(recipe.train, compile="off")
        self.loss_sum = build_loss(self.model, eager, plan.device, objective=self.objective)
        self.batches = [batch.to(plan.device) for batch in self.batches_of(valid)]
        self.frequencies_loss = self.baseline(train)
        self.text = self.fingerprint(train, valid)

    @abstractmethod
    def read(self) -> Splits[Example]:
        """The examples in their three uses."""

    @abstractmethod
    def texts(self) -> Iterable[str]:
        """The training examples' text, to learn a vocabulary from where there is none."""

    @abstractmethod
    def head(self) -> dict[str, Any]:
        """The model's settings that the examples decide."""

    @abstractmethod
    def build(self, model: Encoder, tokenizer: Tokenizer) -> Verb:
        """The object of the task around a model."""

    @abstractmethod
    def lay_out(self, examples: Sequence[Example]) -> Items:
        """Examples as framed sequences with labels."""

    @abstractmethod
    def objective_of(self, train: Items) -> Objective:
        """The loss."""

    @abstractmethod
    def baseline(self, train: Items) -> float:
        """The loss of one who knows how frequent each label is and nothing else."""

    @abstractmethod
    def measure(self, verb: Verb, examples: Sequence[Example]) -> list[Score]:
        """How well the object does on a split."""

    @abstractmethod
    def figures(self, scores: Sequence[Score]) -> Scores:
        """What a validation logs, by the names that `train.metric` knows."""

    @abstractmethod
    def keep(self) -> None:
        """Make the run's folder a model folder of the weights as they are now."""

    @abstractmethod
    def load(self) -> Verb:
        """Read the run's folder back."""

    @abstractmethod
    def stream_of(self, train: Items) -> Stream:
        """Endless batches to train on."""

    @abstractmethod
    def batches_of(self, valid: Items) -> list[Batch]:
        """The batches whose loss is measured."""

    @abstractmethod
    def fingerprint(self, train: Items, valid: Items) -> str:
        """A name of what is trained on and validated with."""

    def keeps_head(self, folder: Where) -> bool:
        """Whether the head of a folder that the run begins from says what this one is to say."""
        return load_config(folder)[0] == self.plan.recipe.task

    @property
    def special(self) -> Specials:
        """The ids of the tokens that are not text."""
        return Specials(self.config.pad_id, self.config.bos_id, self.config.eos_id)

    def _check_length(self) -> None:
        """Examples are never dropped for their length, so nobody should believe that they are."""
        wanted, length = self.plan.recipe.data.max_length, self.config.max_length
        if wanted and wanted != length:
            raise UserError(
                f"data.max_length ({wanted}) is not for task = '{self.plan.recipe.task}', which "
                f"reads as much at a time as the model can; set model.max_length ({length})."
            )

    def say_counts(self) -> None:
        """Tell how many examples there are of each use."""
        counts = {"train": self.splits.train, "valid": self.splits.valid, "test": self.splits.test}
        known = (f"{name}: {len(split):,} examples" for name, split in counts.items() if split)
        self.plan.say("; ".join(known))

    def evaluate(self) -> Scores:
        """The loss, and how well the object does with the weights as they are now."""
        config, device = self.plan.recipe.train, self.plan.device
        loss = mean_loss(self.model, self.loss_sum, self.batches)
        with mixed_precision(config, device):
            scores = self.measure(self.verb, self.splits.valid)
        return {"valid_loss": loss, **self.figures(scores)}

    def finish(self) -> Finished:
        """Measure the best weights on validation and test examples."""
        best = self.load()
        splits = {"valid": self.splits.valid, "test": self.splits.test}
        scores = {name: self.measure(best, split) for name, split in splits.items() if split}
        return Finished(best, scores)


class Labelling(Understanding[Example, Verb, Sequences]):
    """Such a job on framed sequences with labels, which all but one are."""

    def stream_of(self, train: Sequences) -> Stream:
        """Endless batches to train on."""
        config = self.plan.recipe.train
        return SequenceStream(
            train, self.special, "padded", config.batch_tokens, config.accumulate, config.seed
        )

    def batches_of(self, valid: Sequences) -> list[Batch]:
        """The batches whose loss is measured."""
        return sequence_batches(valid, VALID_BATCH_TOKENS, self.special)

    def fingerprint(self, train: Sequences, valid: Sequences) -> str:
        """A name of what is trained on and validated with."""
        return fingerprint(train.tokens.tokens, train.labels, valid.tokens.tokens, valid.labels)


def encoder_tokenizer(plan: Plan, start: Start | None, texts: Any) -> Tokenizer:
    """The tokenizer of the run or of its start, or a new one with a token that hides others."""
    kept = plan.kept_tokenizers or (start.tokenizers if start else None)
    if kept:
        return kept.target
    tokenizer = train_tokenizer(texts(), plan.recipe.tokenizer)
    if "mask" not in tokenizer.names:
        tokenizer.add_special([MASK])
    return tokenizer


def encoder_config(
    plan: Plan, start: Start | None, tokenizer: Tokenizer, **head: Any
) -> ModelConfig:
    """The model that the recipe, or the folder it begins from, describes, with a head."""
    check_head(plan.recipe)
    if not start:
        return model_config(plan.recipe, tokenizer, **head)
    config = start.model_config(plan.recipe, tokenizer)
    return dataclasses.replace(config, **(NO_HEAD | head))


def check_head(recipe: Recipe) -> None:
    """Refuse a recipe that would choose what stands on the encoder."""
    for name in NO_HEAD:
        if name in recipe.model:
            raise UserError(f"[model]: {name} follows from the task and its data; leave it out.")


def fresh_encoder(
    plan: Plan, config: ModelConfig, start: Weights | None, keep_head: bool = True
) -> Encoder:
    """An encoder with weights drawn by the seed, or those of the folder that it begins from.

    Labels of another meaning begin fresh, even where there are just as many.
    """
    torch.manual_seed(plan.recipe.train.seed)
    model = Encoder(config)
    if start:
        fresh = copy.deepcopy(model.head.state_dict())
        start.fill(model)
        if isinstance(model.head, LabelHead) and not (
            keep_head and start.config.head == config.head
        ):
            model.head.load_state_dict(fresh)
    return model.to(plan.device)
