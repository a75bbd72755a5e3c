"""The model to be verified: as it was loaded, as precise as is cheap, and texts for it to read."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.convert import load
from qkv.data import Specials
from qkv.device import pick_device
from qkv.model import Decoder, EncoderDecoder, Model
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
    """What a model reads at once: tokens, with a source where it has an encoder too, or pixels."""

    tokens: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    pixels: Tensor | None = None  # (C, H, W)

    def cut(self, length: int, source_length: int) -> Example:
        """The beginning of it."""
        return Example(self.tokens[:length], self.source[:source_length], self.segments[:length])


@dataclass(frozen=True, eq=False)
class Subject:
    """Everything that a proof works with."""

    path: str | Path  # the name that it was asked for by
    found: Any  # the object of its task, in float32 on the CPU
    model: (
        Model  # the same weights, on the device and in the precision that numbers are compared in
    )
    examples: list[Example]  # made up, of different lengths

    @property
    def limit(self) -> float:
        """How far logits may lie apart: float64 leaves little room, float32 some for rounding."""
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
        """How large it is."""
        return sum(weight.numel() for weight in self.model.parameters())


def prepare(path: str | Path, device: str) -> Subject:
    """Load a model and make up what it is to read, always the same."""
    place = pick_device(device)
    found = load(path, "cpu")  # a GPU would round the weights to bfloat16
    small = sum(weight.numel() for weight in found.model.parameters()) <= SMALL
    dtype = torch.float64 if small else torch.float32
    weight, model = next(found.model.parameters()), found.model
    if (place.type, dtype) != ("cpu", weight.dtype):
        model = copy.deepcopy(found.model).to(place, dtype)
    examples = _images(model) if model.config.patch_size else _texts(found, model)
    return Subject(path, found, model.eval(), examples)


def tokenizers_of(found: Any) -> tuple[Tokenizer, ...]:
    """The vocabularies of source and target, or the only one, or none."""
    both = getattr(found, "tokenizers", None)
    if both is not None:
        return (both.target,) if both.shared else (both.source, both.target)
    return (found.tokenizer,) if hasattr(found, "tokenizer") else ()


def _images(model: Model) -> list[Example]:
    config, draw = model.config, torch.Generator().manual_seed(0)
    shape = (config.n_channels, config.image_size, config.image_size)
    weight = next(model.parameters())
    pixels = torch.randn((N_IMAGES, *shape), generator=draw).to(weight.device, weight.dtype)
    return [Example(pixels=one) for one in pixels]


def _texts(found: Any, model: Model) -> list[Example]:
    config, draw = model.config, random.Random(0)
    special = Specials(config.pad_id, config.bos_id, config.eos_id)
    vocabularies = tokenizers_of(found)
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
            first = special.bos if found.prompting.bos else draw.choice(target_ids)
            examples.append(Example([first, *tokens]))
        else:
            half = (length + 1) // 2 if config.n_segments > 1 and number % 2 else length
            framed = found.reader.frame(tokens[:half], tokens[half:] or None)
            examples.append(Example(framed.tokens, segments=framed.segments))
    return examples


def ordinary_ids(tokenizer: Tokenizer, size: int, special: Specials) -> Sequence[int]:
    """The tokens that a model knows and that stand for text."""
    left_out = {*tokenizer.special_ids, special.pad, special.bos, special.eos}
    found = [id for id in range(min(len(tokenizer), size)) if id not in left_out]
    return found or range(size)
