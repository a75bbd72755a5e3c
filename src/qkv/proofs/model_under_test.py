"""The model that is verified: as loaded, in the precision of the comparison, and its inputs."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.convert import open_model
from qkv.convert.model_folder import is_quantized
from qkv.data import Specials
from qkv.device import pick_device
from qkv.model import Decoder, EncoderDecoder, Model
from qkv.tasks import load
from qkv.text import Tokenizer

SMALL = 150_000_000  # weights; a model of no more is compared in float64, where noise is tiny
LIMITS = {torch.float64: 1e-9, torch.float32: 1e-4}
LENGTHS = (12, 4, 17, 8)  # tokens of text
N_IMAGES = 3
SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "In 1905, four papers changed physics; two of them won no prize at all!",
    "Don't you think it's late?",
    "我爱你。",
    "今天天气很好，我们去公园散步吧！",
)


@dataclass(frozen=True, eq=False)
class Example:
    """One input of a model: tokens, with a source for an encoder-decoder, or pixels."""

    tokens: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    pixels: Tensor | None = None  # (C, H, W)

    def cut(self, length: int, source_length: int) -> Example:
        """The example cut to these lengths."""
        return Example(self.tokens[:length], self.source[:source_length], self.segments[:length])

    def to(self, weight: Tensor) -> Example:
        """The example with its pixels on the device and in the precision of a weight."""
        return self if self.pixels is None else Example(pixels=self.pixels.to(weight))


@dataclass(frozen=True, eq=False)
class ModelUnderTest:
    """A model and made-up inputs: all that a proof works with."""

    path: str | Path  # the name that the user gave
    loaded: Any  # the object of its task, in float32 on the CPU
    model: Model  # its weights on the device and in the precision of the comparison
    examples: list[Example]  # made up, of different lengths
    quantized: Model | None = None  # with integers for weights, where it has such on this machine

    @property
    def limit(self) -> float:
        """The largest difference of logits that passes: small in float64, larger in float32."""
        return LIMITS[next(self.model.parameters()).dtype]

    @property
    def sees(self) -> bool:
        """Whether it reads images."""
        return bool(self.model.config.patch_size)

    @property
    def writes(self) -> bool:
        """Whether it writes one token after another."""
        return isinstance(self.model, Decoder | EncoderDecoder)

    @property
    def special(self) -> Specials:
        """The ids of the tokens that are not text."""
        config = self.model.config
        # A decoder without padding may say so by an id that is no token; any token can be hidden.
        pad = config.pad_id if config.pad_id < config.vocab_size else 0
        return Specials(pad, config.bos_id, config.eos_id)

    @property
    def n_weights(self) -> int:
        """The number of weights."""
        return sum(weight.numel() for weight in self.model.parameters())


def prepare(path: str | Path, device: str, dtype: str | None = None) -> ModelUnderTest:
    """Load a model and make up inputs for it, the same at each call."""
    target = pick_device(device)
    loaded = load(path, "cpu", "fp32")  # a GPU would round the weights to bfloat16
    small = sum(weight.numel() for weight in loaded.model.parameters()) <= SMALL
    precision = torch.float64 if small else torch.float32
    weight, model = next(loaded.model.parameters()), loaded.model
    if (target.type, precision) != ("cpu", weight.dtype):
        model = copy.deepcopy(loaded.model).to(target, precision)
    examples = _images(model) if model.config.patch_size else _texts(loaded, model)
    stored = open_model(path, dtype)
    quantized = load(stored, device).model if is_quantized(stored) else None
    return ModelUnderTest(path, loaded, model.eval(), examples, quantized)


def tokenizers_of(loaded: Any) -> tuple[Tokenizer, ...]:
    """The vocabularies of source and target, or the only one, or none."""
    both = getattr(loaded, "tokenizers", None)
    if both is not None:
        return (both.target,) if both.shared else (both.source, both.target)
    return (loaded.tokenizer,) if hasattr(loaded, "tokenizer") else ()


def _images(model: Model) -> list[Example]:
    config, draw = model.config, torch.Generator().manual_seed(0)
    shape = (config.n_channels, config.image_size, config.image_size)
    weight = next(model.parameters())
    pixels = torch.randn((N_IMAGES, *shape), generator=draw).to(weight.device, weight.dtype)
    return [Example(pixels=image) for image in pixels]


def _texts(loaded: Any, model: Model) -> list[Example]:
    config, draw = model.config, random.Random(0)
    special = Specials(config.pad_id, config.bos_id, config.eos_id)
    vocabularies = tokenizers_of(loaded)
    size = config.source_vocab_size or config.vocab_size
    source_ids = ordinary_ids(vocabularies[0], size, special)
    target_ids = ordinary_ids(vocabularies[-1], config.vocab_size, special)
    room = config.max_length - 2 - config.pair_separators
    lengths = [max(1, min(length, room)) for length in LENGTHS]
    examples = []
    for number, length in enumerate(lengths):
        tokens = draw.choices(target_ids, k=length)
        source = draw.choices(source_ids, k=lengths[number - 1])
        if isinstance(model, EncoderDecoder):
            examples.append(Example([special.bos, *tokens], [*source, special.eos]))
        elif isinstance(model, Decoder):
            first = special.bos if loaded.prompting.bos else draw.choice(target_ids)
            examples.append(Example([first, *tokens]))
        else:
            half = (length + 1) // 2 if config.n_segments > 1 and number % 2 else length
            framed = loaded.reader.frame(tokens[:half], tokens[half:] or None)
            examples.append(Example(framed.tokens, segments=framed.segments))
    return examples


def ordinary_ids(tokenizer: Tokenizer, size: int, special: Specials) -> Sequence[int]:
    """The tokens that a model knows and that stand for text."""
    left_out = {*tokenizer.special_ids, special.pad, special.bos, special.eos}
    ids = [id for id in range(min(len(tokenizer), size)) if id not in left_out]
    return ids or range(size)
