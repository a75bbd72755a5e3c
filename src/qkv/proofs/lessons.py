"""Made-up training items of the kind that a model is trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.config import EmbedConfig
from qkv.data import (
    IGNORE,
    ConversationItems,
    Framed,
    ImageItems,
    Items,
    PairItems,
    Ragged,
    Scale,
    SequenceItems,
    TwinItems,
    framed_arrays,
)
from qkv.model import Decoder, EncoderDecoder
from qkv.proofs.model_under_test import ModelUnderTest
from qkv.tasks import Answerer
from qkv.training import (
    Objective,
    contrast,
    many_classes,
    masked_tokens,
    next_token,
    number,
    one_class,
    spans,
    token_labels,
)

N_IMAGES = 4


@dataclass(frozen=True)
class Lesson:
    """An objective, and made-up items for it."""

    objective: Objective
    items: Items
    batch_tokens: int
    across: bool = False  # the loss compares the texts of a batch with one another


def lesson(tested: ModelUnderTest) -> Lesson:
    """Make some items of the kind that the model is trained on."""
    model, examples, special = tested.model, tested.examples, tested.special
    if tested.sees:
        return _images(tested)
    budget = 2 * max(len(example.tokens) for example in examples)
    if isinstance(model, EncoderDecoder):
        sources = Ragged.of([example.source[:-1] for example in examples])
        targets = Ragged.of([example.tokens[1:] for example in examples])
        return Lesson(next_token, PairItems(sources, targets, special), budget)
    tokens = Ragged.of([example.tokens for example in examples])
    if isinstance(model, Decoder):
        learned = np.ones(len(tokens.tokens), np.bool_)
        return Lesson(next_token, ConversationItems(tokens, learned, special), budget)
    if model.config.head == "none":
        backwards = Ragged.of([[text.tokens[0], *text.tokens[:0:-1]] for text in examples])
        groups = np.stack([np.arange(len(examples))] * 2, axis=1)
        settings = getattr(tested.loaded, "embedding", None) or EmbedConfig()
        objective = contrast(settings.pooling, settings.temperature)
        items = TwinItems(tokens, backwards, groups, special)
        return Lesson(objective, items, budget, across=True)
    objective, labels, by_token = _labels(tested, tokens)
    framed = [Framed(example.tokens, example.segments) for example in examples]
    segments = framed_arrays(framed)["segments"]
    labelled = SequenceItems(tokens, segments, labels, special, by_token=by_token)
    return Lesson(objective, labelled, budget)


def _labels(tested: ModelUnderTest, tokens: Ragged) -> tuple[Objective, npt.NDArray[Any], bool]:
    """Some labels for the model's head, and whether each token has one."""
    config, ids = tested.model.config, np.arange(len(tokens.tokens))
    if config.head == "masked":
        return masked_tokens(), np.where(ids % 3 == 0, tokens.tokens, IGNORE), True
    if isinstance(tested.loaded, Answerer):
        last = tokens.lengths - 1
        return spans(), np.stack([last // 3, last // 2], axis=1), False
    if config.head == "token":
        return token_labels(), np.where(ids % 2 == 0, ids % config.n_labels, IGNORE), True
    kind = getattr(getattr(tested.loaded, "classes", None), "kind", "class")
    numbers = np.arange(len(tokens))
    if kind == "number":
        return number, numbers.astype(np.float32) / len(tokens), False
    if kind == "classes":
        chosen = (numbers[:, None] + np.arange(config.n_labels)) % 2
        return many_classes(), chosen.astype(np.float32), False
    return one_class(), numbers % config.n_labels, False


def _images(tested: ModelUnderTest) -> Lesson:
    config = tested.model.config
    shape = (N_IMAGES, config.n_channels, config.image_size, config.image_size)
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    scale = Scale((0.5,) * config.n_channels, (0.25,) * config.n_channels)
    labels = np.arange(N_IMAGES) % config.n_labels
    images = ImageItems(pixels, labels, scale, config.n_positions)
    return Lesson(one_class(), images, 2 * config.n_positions)
