"""One forward pass over texts in each layout: alone, in rows, padded, packed, in one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from qkv.batching import pad_rows
from qkv.model import Encoder, EncoderDecoder, Layout, Model
from qkv.proofs.model_under_test import Example

Lay = Callable[[Sequence[list[int]]], tuple[Tensor, Layout]]


def alone(model: Model, example: Example) -> Tensor:
    """The output for one example alone: (T, V), or (C,) for a classification head."""
    return in_rows(model, [example])[0]


@torch.inference_mode()
def in_rows(model: Model, examples: Sequence[Example]) -> list[Tensor]:
    """The outputs for images, or texts of one length, in one batch."""
    images = [example.pixels for example in examples if example.pixels is not None]
    if images:
        logits: Tensor = model(torch.stack(images))
        return list(logits)
    return list(_read(model, examples, partial(_rows, model, full=True)))


@torch.inference_mode()
def padded(model: Model, examples: Sequence[Example]) -> list[Tensor]:
    """The outputs for texts of any lengths, padded to one length."""
    outputs = _read(model, examples, partial(_rows, model))
    if _has_one_output(model):
        return list(outputs)
    return [row[: len(example.tokens)] for row, example in zip(outputs, examples, strict=True)]


@torch.inference_mode()
def packed(model: Model, examples: Sequence[Example]) -> list[Tensor]:
    """The outputs for packed texts, told apart by their offsets."""
    outputs = _read(model, examples, partial(_packed, model))
    if _has_one_output(model):
        return list(outputs)
    return list(outputs[0].split([len(example.tokens) for example in examples]))


@torch.inference_mode()
def in_one_row(model: Model, examples: Sequence[Example]) -> list[Tensor]:
    """The outputs for texts in one row, told apart by where each begins, as a decoder learns."""
    outputs = _read(model, examples, partial(_one_row, model))
    return list(outputs[0].split([len(example.tokens) for example in examples]))


def can_pack(model: Model) -> bool:
    """Whether texts can lie end to end; dropping attention weights is for training alone."""
    return replace(model.config, attention_dropout=0.0).can_pack


def _has_one_output(model: Model) -> bool:
    return model.config.head == "sequence"


def _read(model: Model, examples: Sequence[Example], lay: Lay) -> Tensor:
    tokens, layout = lay([example.tokens for example in examples])
    if isinstance(model, EncoderDecoder):
        source, source_layout = lay([example.source for example in examples])
        return model(source, tokens, source_layout, layout)
    if isinstance(model, Encoder):
        return model(tokens, layout, lay([example.segments for example in examples])[0])
    return model(tokens, layout)


def _rows(model: Model, texts: Sequence[list[int]], full: bool = False) -> tuple[Tensor, Layout]:
    device = next(model.parameters()).device
    lengths = torch.tensor(list(map(len, texts)), device=device)
    return pad_rows(texts).to(device), Layout() if full else Layout(lengths)


def _packed(model: Model, texts: Sequence[list[int]]) -> tuple[Tensor, Layout]:
    device = next(model.parameters()).device
    offsets = [0, *accumulate(map(len, texts))]
    layout = Layout(
        offsets=torch.tensor(offsets, dtype=torch.int32, device=device),
        longest=max(map(len, texts)),
    )
    return torch.tensor([[token for text in texts for token in text]], device=device), layout


def _one_row(model: Model, texts: Sequence[list[int]]) -> tuple[Tensor, Layout]:
    tokens, _ = _packed(model, texts)
    starts = [0, *accumulate(map(len, texts))]
    first = [start for start, text in zip(starts, texts, strict=False) for _ in text]
    return tokens, Layout(first=torch.tensor([first], device=tokens.device))
