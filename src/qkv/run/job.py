"""The life of a training run: one `Job` whose phases `run/train.py` calls in order.

A task is a subclass in a file of its own that fills in what differs: what its examples are, how
they become items, which head and objective they need, and what is measured.
"""

from __future__ import annotations

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from qkv.config import PRESETS, TASKS, ModelConfig, Recipe
from qkv.convert import Tokenizers
from qkv.convert.adapter import restore
from qkv.convert.model_folder import WEIGHTS
from qkv.data import (
    Batch,
    HeldOut,
    Items,
    Specials,
    Splits,
    Stream,
    TextCorpus,
    Tokens,
    describe_example,
    draw_examples,
    hold_out,
    load_corpus,
    read_splits,
    repeated,
    text_tokenizer,
    training_text,
    validation_batches,
)
from qkv.device import is_on, mixed_precision, release_memory
from qkv.errors import UserError
from qkv.evaluation import Score, evaluate
from qkv.model import build_model, recompute_blocks
from qkv.run.display import reading_bar
from qkv.run.folder import CHECKPOINTS
from qkv.run.lora import lora_model
from qkv.run.start import Start, open_start
from qkv.tasks import load
from qkv.text import Tokenizer, train_tokenizer
from qkv.training import (
    ALONE,
    Distribution,
    Objective,
    build_loss,
    consistent_next_token,
    contrast,
    entropy,
    masked_tokens,
    one_class,
    preference,
    spans,
    token_labels,
    total_loss,
)
from qkv.weights import StoredTensors, load_weights

BY_TOKENIZER = ("vocab_size", "source_vocab_size", "pad_id", "bos_id", "eos_id")
VALID_BATCH_TOKENS = 4096
MEASURED = 2_000_000  # tokens of the validation split whose loss is measured while training
SCORED = 1000  # validation examples that are scored at each validation, where that is slow
ASKED = ("translate", "answers", "classify", "tag")  # methods of results: a list in, a list out
TOKENIZER_TEXT = 20_000_000  # characters that a vocabulary is learned from; more change little

Example = TypeVar("Example")


class Job(ABC):
    """One run of a task. Attributes are set by the phases, in their order; none by the constructor.

    `read` → start; `make_tokenizer` → tokenizers; `make_model` → config, model, result;
    `make_items` → train_items, valid_items; `make_stream` → stream, valid_batches; then `evaluate`
    and `save` during training, and `measure` after it.
    """

    objective: Objective
    start: Start | None
    tokenizers: Tokenizers | None
    config: ModelConfig
    model: Any
    result: Any
    train_items: Any
    valid_items: Any
    stream: Stream
    valid_batches: list[Batch]

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        device: torch.device,
        say: Callable[[str], None],
        resume: bool = False,
        workers: Distribution = ALONE,
    ) -> None:
        self.recipe, self.folder, self.device, self.say = recipe, folder, device, say
        self.resume, self.workers, self.spec = resume, workers, TASKS[recipe.task]
        self.objective = objective_of(recipe)

    # The phases

    def read(self) -> None:
        """Open the model that the run starts from, and read the data."""
        self.start = open_start(self.recipe, self.spec.family)
        self.read_data()

    def make_tokenizer(self) -> None:
        """Take the tokenizers of the resumed run or of the start, or train them."""
        given = self._resumed_tokenizers() or (self.start.tokenizers if self.start else None)
        # One worker trains them: equally frequent pieces might be merged in another order.
        self.tokenizers = given or self.workers.from_main(self.train_tokenizers)
        self.tokenizers.target.add_special(self.special_tokens(self.tokenizers.target))

    def make_model(self) -> None:
        """Build the model with weights drawn by the seed, or those of the start."""
        self.config = self.model_config()
        torch.manual_seed(self.recipe.train.seed)
        if self.start and self.recipe.train.lora_rank:
            keep_head, device = self.keeps_head(self.start), self.device
            self.model = lora_model(self.start, self.config, self.recipe, device, keep_head)
        else:
            self.model = build_model(self.config)
            if self.start:
                self.start.fill(self.model, self.keeps_head(self.start))
            self.model.to(self.device)
        recompute_blocks(self.model, self.recipe.train.recompute)
        self.result = self.build_result(self.model)

    def make_items(self) -> None:
        """Encode the training and validation data."""
        self.train_items = self.encode("train")
        self.valid_items = self.encode("valid")

    def make_stream(self) -> None:
        """Order the training batches, and lay out those that validation measures."""
        train = self.recipe.train
        self.stream = Stream(
            self.train_items,
            train.batch_tokens,
            packed=self.packed,
            accumulate=train.accumulate,
            seed=train.seed,
            worker=self.workers.data_rank,
            n_workers=self.workers.data_size,
        )
        # Padded batches of many shapes, which a compiled step would be compiled for again and again
        eager = dataclasses.replace(train, compile="off")
        self.loss_sum = build_loss(self.model, eager, self.device, objective=self.objective)
        batches = validation_batches(self.valid_items, self.valid_tokens, self.packed)
        most = max(1, MEASURED // self.valid_tokens)
        self.valid_batches = list(islice(batches, most))

    def evaluate(self) -> dict[str, float]:
        """Measure the weights as they are now: the validation loss and the task's metrics."""
        scores = {"valid_loss": self.loss(self.valid_batches)}
        with mixed_precision(self.recipe.train, self.device):
            return scores | self.named(self.valid_scores())

    def measure(self) -> dict[str, list[Score]]:
        """Score the best weights on the validation and test splits."""
        self.workers.barrier()  # the main worker has written them
        release_memory()  # of training: the result is a second model in memory
        folder, device = self.folder, str(self.device)
        if self.model.adapted_from:
            restore(self.model, folder, self.recipe.task)
        else:
            load_weights(self.model, StoredTensors(folder / WEIGHTS), folder / WEIGHTS)
        # What the frozen weights of a LoRA run are, so that it is measured with the same.
        base = self.recipe.train.lora_base if self.recipe.train.lora_rank else ""
        self.result = load(folder, device, base if base.startswith("int") else None)
        return {split: self.scores(split) for split in ("valid", "test") if self.has(split)}

    # What a task fills in

    @abstractmethod
    def read_data(self) -> None:
        """Read the examples or find the text."""

    @abstractmethod
    def texts(self) -> Iterable[str]:
        """Yield training text that a vocabulary is learned from."""

    @abstractmethod
    def build_result(self, model: Any) -> Any:
        """Build the object of the task around the model."""

    @abstractmethod
    def encode(self, split: str) -> Items:
        """Make the items of a split."""

    @abstractmethod
    def baseline(self) -> float:
        """Return the loss of predicting frequencies alone, which training must beat."""

    @abstractmethod
    def has(self, split: str) -> bool:
        """Whether there is data of a split."""

    @abstractmethod
    def scores(self, split: str) -> list[Score]:
        """Score the result on a split, after training."""

    def valid_scores(self) -> list[Score]:
        """Score the result at a validation."""
        return []

    @property
    def n_labels(self) -> int:
        """Outputs of an encoder's head, which the data may decide."""
        return self.spec.n_labels

    def keeps_head(self, start: Start) -> bool:
        """Whether the head of the start means what this run's head means."""
        return start.task == self.recipe.task

    def special_tokens(self, tokenizer: Tokenizer) -> list[str]:
        """Name the special tokens that the task needs; those that are missing are added."""
        return []

    def save(self) -> None:
        """Write the run folder as a model folder of the weights as they are now."""
        self.result.save(self.folder)

    # What tasks share

    @property
    def packed(self) -> bool:
        """Whether batches are packed: where the task and the model can be, and it is on."""
        train = self.recipe.train
        can_pack = self.spec.reads("train", "packing") and self.config.can_pack
        return can_pack and is_on(train.packing, self.device)

    @property
    def valid_tokens(self) -> int:
        """Tokens of a validation batch."""
        return VALID_BATCH_TOKENS

    @property
    def special(self) -> Specials:
        """Ids of the special tokens that batches need."""
        return Specials(self.config.pad_id, self.config.bos_id, self.config.eos_id)

    @property
    def tokenizer(self) -> Tokenizer:
        """The (target's) tokenizer."""
        assert self.tokenizers is not None
        return self.tokenizers.target

    def train_tokenizers(self) -> Tokenizers:
        """Train one tokenizer on the training text."""
        tokenizer = train_tokenizer(self.texts(), self.recipe.tokenizer)
        return Tokenizers(tokenizer, tokenizer)

    def _resumed_tokenizers(self) -> Tokenizers | None:
        """Load a resumed run's tokenizers, which are beside its checkpoints."""
        if not self.resume:
            return None
        try:
            return Tokenizers.load(self.folder / CHECKPOINTS)
        except UserError:
            return None

    def model_config(self) -> ModelConfig:
        """Describe the model by the tokenizers and labels that the data has led to."""
        return describe_model(self.recipe, self.start, self.tokenizers, self.n_labels)

    def max_length(self, least: int = 1) -> int:
        """Return the longest sequence that is trained on."""
        asked, most = self.recipe.data.max_length, self.config.max_length
        if asked > most:
            raise UserError(
                f"data.max_length ({asked}) is over model.max_length ({most}); raise the one or "
                f"lower the other."
            )
        length = asked or most
        if length < least:
            raise UserError(
                f"data.max_length ({length}) leaves no room for text between the special tokens; "
                f"raise it to at least {least}."
            )
        return length

    def total_loss(self, batches: Iterable[Batch]) -> tuple[float, int]:
        """Return the loss summed over all labels, and their number; each worker does its share."""
        device = self.device
        own = (batch.to(device) for batch in self.workers.share(batches))
        total, n_labels = self.workers.reduce_sum(*total_loss(self.model, self.loss_sum, own))
        return total, round(n_labels)

    def loss(self, batches: Iterable[Batch]) -> float:
        """Return the mean loss of a label."""
        total, n_labels = self.total_loss(batches)
        return total / n_labels

    def spread_result(self) -> Any:
        """Return the result with its inputs shared out to all workers."""
        if self.workers.size == 1:
            return self.result
        spread = copy(self.result)
        for name in ASKED:
            if hasattr(spread, name):
                setattr(spread, name, self.workers.spread(getattr(self.result, name)))
        return spread

    def named(self, scores: Sequence[Score]) -> dict[str, float]:
        """Return the scores that are logged, by their names in the log."""
        values = {score.name: score.value for score in scores}
        return {
            name: values[score]
            for name, names in self.spec.metrics.items()
            for score in names
            if score in values
        }

    def digest(self) -> str:
        """Identify the data, so that a run is resumed with what it began with."""
        content = self.train_items.digest, self.valid_items.digest
        return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()


def objective_of(recipe: Recipe) -> Objective:
    """Return the loss of a task, as far as it does not depend on the data."""
    consistency = recipe.train.consistency
    objectives: dict[str, Objective] = {
        "next_token": consistent_next_token(consistency),
        "masked_tokens": masked_tokens(),
        "one_class": one_class(consistency=consistency),
        "token_labels": token_labels(consistency),
        "spans": spans(consistency),
        "contrast": contrast(recipe.embed.pooling, recipe.embed.temperature),
        "preference": preference(recipe.prefer.beta),
    }
    return objectives[TASKS[recipe.task].objective]


def describe_model(
    recipe: Recipe, start: Start | None, tokenizers: Tokenizers | None, n_labels: int
) -> ModelConfig:
    """Describe the model: the preset or the start, with what recipe, tokenizer and data say.

    Without tokenizers, the vocabulary has the size that the recipe asks for.
    """
    spec, head = TASKS[recipe.task], dict[str, Any]()
    if spec.family == "encoder":
        pair_head = recipe.mask.pairs != "none"
        head = {"head": spec.head, "n_labels": n_labels, "pair_head": pair_head}
    _check_absent(recipe, head, "the task and its data; leave it out")
    if start:
        return start.model_config(recipe, tokenizers, head)
    values = {**PRESETS[recipe.preset], **head, **recipe.model}
    if not values.get("patch_size"):
        _check_absent(recipe, BY_TOKENIZER, "the tokenizer; set it in [tokenizer]")
        values |= _vocabulary(recipe, tokenizers)
        if "source_vocab_size" in values:
            values = {"tie": "output", **values}
    return ModelConfig.from_dict(values, "[model]")


def _check_absent(recipe: Recipe, names: Iterable[str], source: str) -> None:
    for name in names:
        if name in recipe.model:
            raise UserError(f"[model]: {name} follows from {source}.")


def _vocabulary(recipe: Recipe, tokenizers: Tokenizers | None) -> dict[str, int]:
    """Return the sizes and special tokens of the vocabularies, or the sizes that are asked for."""
    if tokenizers is None:
        size = recipe.tokenizer.vocab_size
        is_shared = TASKS[recipe.task].family != "encoder-decoder" or recipe.tokenizer.shared
        return {"vocab_size": size} | ({} if is_shared else {"source_vocab_size": size})
    target, source = tokenizers.target, tokenizers.source
    ids = {"pad_id": target.pad_id, "bos_id": target.bos_id, "eos_id": target.eos_id}
    sizes = {} if tokenizers.shared else {"source_vocab_size": len(source)}
    return {"vocab_size": len(target), **ids, **sizes}


class ExampleJob(Job, Generic[Example]):
    """A job on examples: pairs, conversations, labelled texts or images."""

    splits: Splits[Example]

    @abstractmethod
    def read_splits(self) -> Splits[Example]:
        """Read the examples in their three splits, by means of `split`."""

    def split(
        self,
        read: Callable[[Sequence[str]], list[Example]],
        key: Callable[[Example], Hashable],
        labels: Callable[[Example], Collection[Hashable]] = lambda example: (),
        kind: Callable[[Example], Hashable] = lambda example: None,
    ) -> Splits[Example]:
        """Read the files of each split, and draw `n_examples` to train on, as many of each kind."""
        data, seed, (name, *_) = self.recipe.data, self.recipe.train.seed, self.spec.files

        def read_split(prefix: str) -> list[Example]:
            paths = getattr(data, prefix + name)
            return read(paths) if paths else []

        splits = read_splits(read_split, name, data.valid_size, seed, key, labels)
        train = draw_examples(splits.train, data.n_examples, seed, kind)
        splits = Splits(train, splits.valid, splits.test)
        for sentence in repeated(splits, name, key):
            self.say(sentence)
        return splits

    def read_data(self) -> None:
        """Read the examples, and show how many there are and what the first one is."""
        self.splits = self.read_splits()
        counts = {name: len(self.examples(name)) for name in ("train", "valid", "test")}
        shown = (f"{name}: {count:,} examples" for name, count in counts.items() if count)
        self.say("; ".join(shown))
        self.say(f"first example: {describe_example(self.splits.train[0])}")

    def examples(self, split: str) -> list[Example]:
        """Return the examples of a split."""
        return getattr(self.splits, split)

    def baseline(self) -> float:
        """Return the loss of predicting label frequencies."""
        return entropy(self.train_items.label_counts())

    def has(self, split: str) -> bool:
        """Whether there are examples of a split."""
        return bool(self.examples(split))

    def scores(self, split: str) -> list[Score]:
        """Score the result on all examples of a split."""
        examples: Any = self.examples(split)
        return evaluate(self.spread_result(), examples).scores

    def valid_scores(self) -> list[Score]:
        """Score the result on the validation examples."""
        return self.scores("valid")


class TextJob(Job):
    """A job on plain text of any size."""

    held_out: HeldOut
    corpus: TextCorpus
    test_items: Any

    def read_data(self) -> None:
        """Choose what is held out, before a vocabulary is learned from the rest."""
        self.data = self.recipe.data
        self.held_out = hold_out(self.data)

    def texts(self) -> Iterable[str]:
        """Yield text from all over the training files."""
        return training_text(self.data, self.held_out, TOKENIZER_TEXT)

    def train_tokenizers(self) -> Tokenizers:
        """Train one tokenizer; that of a large text is kept for other runs on the same text."""
        tokenizer = text_tokenizer(self.data, self.held_out, self.recipe.tokenizer, self.texts())
        return Tokenizers(tokenizer, tokenizer)

    def make_items(self) -> None:
        """Encode the text, or open it from the cache."""
        with reading_bar("reading text", self.workers.is_main) as progress:
            self.corpus = load_corpus(self.data, self.tokenizer, self.held_out, progress)
        train, valid = self.corpus.train, self.corpus.valid
        self.say(
            f"train: {len(train):,} tokens in {len(train.documents):,} "
            f"document{'s' * (len(train.documents) != 1)}; "
            f"valid: {len(valid):,} tokens"
        )
        super().make_items()
        # A test text that cannot be scored is refused before training, not after it.
        self.test_items = self.encode("test") if self.has("test") else None

    def tokens(self, split: str) -> Tokens:
        """Return the tokens of a split."""
        return getattr(self.corpus, split)

    def has(self, split: str) -> bool:
        """Whether there is text of a split."""
        return self.tokens(split) is not None

    def token_counts(self) -> npt.NDArray[np.int64]:
        """Count the tokens at the beginning of the training text."""
        return np.bincount(self.corpus.train.read(0, min(len(self.corpus.train), 200_000)))

    def evaluate(self) -> dict[str, float]:
        """Measure the weights as they are now; the loss, of tokens alone, is the first score."""
        scores = self.valid_scores()
        return {"valid_loss": scores[0].value, **self.named(scores)}

    def valid_scores(self) -> list[Score]:
        """Score the validation text, of a long one its beginning."""
        return self.text_scores("valid", self.valid_batches)

    def scores(self, split: str) -> list[Score]:
        """Score all text of a split."""
        items = self.valid_items if split == "valid" else self.test_items
        return self.text_scores(split, validation_batches(items, self.valid_tokens, self.packed))

    @abstractmethod
    def text_scores(self, split: str, batches: Iterable[Batch]) -> list[Score]:
        """Score batches of a split's text; the loss comes first."""
