"""Contrastive training: texts that belong together in, an encoder that sets them together out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.data import Batch, Ragged, Twins, TwinStream, twin_batches
from qkv.data.labelled import read_texts
from qkv.data.splits import Splits, draw_examples, read_splits
from qkv.errors import UserError
from qkv.evaluation import Score
from qkv.model import Encoder as EncoderModel
from qkv.run.job import fingerprint
from qkv.run.understand import VALID_BATCH_TOKENS, Understanding
from qkv.tasks.encoder import Encoder
from qkv.text import Tokenizer
from qkv.training import Objective, contrast
from qkv.training.loop import Scores, Stream

Texts = tuple[str, ...]
ROWS = 1024  # texts that are compared with all others at a time


class Contrasting(Understanding[Texts, Encoder, Twins]):
    """The job of `task = "embed"`.

    A text that comes alone is its own twin: dropout makes the two different (Gao et al. 2021).
    """

    def read(self) -> Splits[Texts]:
        """Pairs of texts, or texts; `n_examples` of those to train on."""
        recipe = self.plan.recipe
        data, seed = recipe.data, recipe.train.seed

        def read(paths: Sequence[str], name: str) -> list[Texts]:
            return self._whole(read_texts(paths, data.text_fields, data.label_field, name), name)

        splits = read_splits(data, seed, read, lambda one: one[0])
        if recipe.train.metric == "accuracy" and not are_pairs(splits.valid):
            raise UserError(
                "train: metric = 'accuracy' is how often a text's other half is found, but the "
                "validation examples are no pairs; use metric = 'loss'."
            )
        train = draw_examples(splits.train, data.n_examples, seed, lambda one: None)
        return Splits(train, splits.valid, splits.test)

    def _whole(self, examples: list[Texts], name: str) -> list[Texts]:
        """Leave out pairs of which one text is missing."""
        whole = [one for one in examples if all(one)]
        if not whole:
            raise UserError(f"data: all pairs of {name}examples lack one of their texts.")
        if len(whole) < len(examples):
            self.plan.say(f"{name}examples: {len(examples) - len(whole):,} pairs lack a text")
        return whole

    def texts(self) -> Iterable[str]:
        """All texts that are trained on."""
        return (text for one in self.splits.train for text in one)

    def head(self) -> dict[str, Any]:
        """What is wanted is the text's vector itself."""
        return {"head": "none"}

    def build(self, model: EncoderModel, tokenizer: Tokenizer) -> Encoder:
        """The object of the task around a model."""
        return Encoder(model, tokenizer, self.plan.recipe.embed)

    def lay_out(self, examples: Sequence[Texts]) -> Twins:
        """Both texts of each pair, cut to the model's length; the same first text, one group."""
        first, second = ([one[side] for one in examples] for side in (0, -1))
        return Twins(self._framed(first), self._framed(second), numbered(first))

    def _framed(self, texts: Sequence[str]) -> Ragged:
        reader = self.verb.reader
        room = reader.room()
        return Ragged.of([reader.frame(ids[:room]).tokens for ids in reader.encode(texts)])

    def objective_of(self, train: Twins) -> Objective:
        """Each text is nearer to its twin than to the others of the batch."""
        config = self.plan.recipe.embed
        return contrast(config.pooling, config.temperature)

    def baseline(self, train: Twins) -> float:
        """The loss of one to whom all texts of a validation batch are alike."""
        choices = [
            math.log(len(batch.labels) - same + 1)
            for batch in self.batches
            for same in (batch.labels[:, None] == batch.labels).sum(dim=1).tolist()
        ]
        return float(np.mean(choices))

    def measure(self, verb: Encoder, examples: Sequence[Texts]) -> list[Score]:
        """How often a text's own twin is the nearest; of single texts, how well they are spread."""
        if are_pairs(examples):
            return retrieval_scores(verb, examples)
        return [uniformity(verb, [one[0] for one in examples])]

    def figures(self, scores: Sequence[Score]) -> Scores:
        """The share of twins that are found."""
        return {score.name: score.value for score in scores if score.name == "accuracy"}

    def stream_of(self, train: Twins) -> Stream:
        """Endless batches to train on."""
        config = self.plan.recipe.train
        return TwinStream(
            train, self.special, "padded", config.batch_tokens, config.accumulate, config.seed
        )

    def batches_of(self, valid: Twins) -> list[Batch]:
        """The batches whose loss is measured."""
        return twin_batches(valid, VALID_BATCH_TOKENS, self.special)

    def fingerprint(self, train: Twins, valid: Twins) -> str:
        """A name of what is trained on and validated with."""
        sides = (train.first, train.second, valid.first, valid.second)
        return fingerprint(*(side.tokens for side in sides), train.groups, valid.groups)

    def keep(self) -> None:
        """Make the run's folder a model folder of the weights as they are now."""
        self.verb.save(self.plan.folder, "embed")

    def load(self) -> Encoder:
        """Read the run's folder back."""
        return Encoder.load(self.plan.folder, self.plan.device)


def are_pairs(examples: Sequence[Texts]) -> bool:
    """Whether texts come in pairs; all of a split do, or none."""
    return len(examples[0]) == 2


def numbered(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """A number for each text; equal ones have equal numbers."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)


def retrieval_scores(verb: Encoder, pairs: Sequence[Texts]) -> list[Score]:
    """How well each first text finds its own second one among all different second ones.

    Other second ones that belong to it are no rivals. Rivals that are just as near count as
    nearer, or one who takes all texts for the same would always be right.
    """
    groups, columns = (numbered([one[side] for one in pairs]) for side in (0, 1))
    partners: dict[int, list[int]] = defaultdict(list)
    for group, column in zip(groups.tolist(), columns.tolist(), strict=True):
        partners[group].append(column)
    first, second = (
        verb.embed(list(dict.fromkeys(one[side] for one in pairs)), normalize=True)
        for side in (0, 1)
    )
    ranks: list[int] = []
    for rows, likeness in _likenesses(first[groups], second):
        own = likeness.gather(1, torch.from_numpy(columns[rows, None]))
        for row, group in enumerate(groups[rows].tolist()):
            likeness[row, partners[group]] = -math.inf
        ranks += (1 + (likeness >= own).sum(dim=1)).tolist()
    found = 100 * sum(rank == 1 for rank in ranks) / len(ranks)
    mean = sum(1 / rank for rank in ranks) / len(ranks)
    return [
        Score("accuracy", found, f"of {len(pairs):,} pairs"),
        Score("mean reciprocal rank", mean, digits=4),
    ]


def uniformity(verb: Encoder, texts: Sequence[str]) -> Score:
    """How evenly texts are spread: log of the mean of exp(-2·distance²) (Wang & Isola 2020)."""
    numbers = torch.from_numpy(numbered(texts))
    vectors = verb.embed(texts, normalize=True)
    total, count = 0.0, 0
    for rows, likeness in _likenesses(vectors, vectors):
        others = numbers[rows, None] != numbers
        total += float((4 * (likeness[others].double() - 1)).exp().sum())
        count += int(others.sum())
    value = math.log(total / count) if count else 0.0
    return Score("uniformity", value, "lower is better", digits=3)


def _likenesses(one: Tensor, other: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The cosines of some rows of unit vectors with all others, (R, N), in bounded memory."""
    for start in range(0, len(one), ROWS):
        rows = slice(start, start + ROWS)
        yield rows, one[rows] @ other.T
