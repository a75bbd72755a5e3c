"""Something that a model can learn from, of the kind that its task is trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.data import (
    IGNORE,
    BatchStream,
    EncodedPairs,
    Examples,
    ExampleStream,
    Framed,
    Ragged,
    Sequences,
    SequenceStream,
    Twins,
    TwinStream,
)
from qkv.data.pixels import ImageSet, ImageStream, Scale
from qkv.data.stream import SizedStream
from qkv.model import Decoder, EncoderDecoder
from qkv.proofs.model_under_test import ModelUnderTest
from qkv.tasks import Answerer
from qkv.training import (
    Objective,
    contrast,
    hidden_tokens,
    many_classes,
    next_token,
    number,
    one_class,
    spans,
    token_labels,
)

N_IMAGES = 4


@dataclass(frozen=True)
class Lesson:
    """An objective, and made-up batches for it."""

    objective: Objective
    stream: SizedStream[Any]
    n_items: int
    across: bool = False  # the loss compares the texts of a batch with one another


def lesson(tested: ModelUnderTest) -> Lesson:
    """What this model is trained on, in small."""
    model, examples = tested.model, tested.examples
    if tested.sees:
        return _images(tested)
    n_items, budget = len(examples), 2 * max(len(one.tokens) for one in examples)
    if isinstance(model, EncoderDecoder):
        sources = Ragged.of([one.source[:-1] for one in examples])
        pairs = EncodedPairs(sources, Ragged.of([one.tokens[1:] for one in examples]))
        stream: Any = BatchStream(pairs, tested.special, "padded", budget)
        return Lesson(next_token, stream, n_items)
    tokens = Ragged.of([one.tokens for one in examples])
    if isinstance(model, Decoder):
        learnt = Examples(tokens, np.ones(len(tokens.tokens), np.bool_))
        stream = ExampleStream(learnt, tested.special, "padded", budget)
        return Lesson(next_token, stream, n_items)
    if model.config.head == "none":
        backwards = Ragged.of([[one.tokens[0], *one.tokens[:0:-1]] for one in examples])
        twins = Twins(tokens, backwards, np.arange(n_items))
        how = getattr(tested.loaded, "embedding", None)
        objective = contrast(how.pooling, how.temperature) if how else contrast("mean", 0.05)
        stream = TwinStream(twins, tested.special, "padded", budget)
        return Lesson(objective, stream, n_items, across=True)
    objective, labels, by_token = _labels(tested, tokens)
    framed = [Framed(one.tokens, one.segments) for one in examples]
    sequences = Sequences.of(framed, labels, by_token)
    stream = SequenceStream(sequences, tested.special, "padded", budget)
    return Lesson(objective, stream, n_items)


def _labels(tested: ModelUnderTest, tokens: Ragged) -> tuple[Objective, npt.NDArray[Any], bool]:
    """Some labels for the model's head, and whether each token has one."""
    config, ids = tested.model.config, np.arange(len(tokens.tokens))
    if config.head == "masked":
        return hidden_tokens(), np.where(ids % 3 == 0, tokens.tokens, IGNORE), True
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
    images = ImageSet(pixels, labels, scale, config.n_positions)
    stream = ImageStream(images, 2 * config.n_positions)
    return Lesson(one_class(), stream, N_IMAGES)
