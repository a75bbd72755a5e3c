"""Checkpoints against transformers in float64: what both say, and the gradient of every weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from qkv.convert.architectures import ARCHITECTURES
from qkv.convert.architectures.architecture import Architecture
from qkv.convert.huggingface.fitting import fitting
from qkv.convert.huggingface.foreign_weights import applicable
from qkv.model import Encoder, EncoderDecoder, Model
from tests.convert.encoders import said
from tests.convert.harness import read, saved, texts

EXACT = 1e-9  # of the largest number compared
IN_FLOAT32 = {"mt5": 1e-5, "deberta": 1e-5}  # whose norms are so, whatever the weights are


def assert_exact(theirs: PreTrainedModel, head: str, lengths: list[int], seed: int = 0) -> None:
    """Both say the same, and the same weights matter as much."""
    architecture = ARCHITECTURES[theirs.config.model_type]
    with saved(theirs) as folder:
        source, ours = read(folder)
    theirs, ours = theirs.double(), ours.double()
    pairs = _said(head, ours, theirs, lengths, seed)
    for mine, other in pairs:
        assert_near(mine, other, IN_FLOAT32.get(architecture.model_type, EXACT))
    draw = torch.Generator().manual_seed(seed)
    directions = [torch.randn(mine.shape, generator=draw, dtype=torch.float64) for mine, _ in pairs]
    for which in (0, 1):
        terms = [(pair[which] * way).sum() for pair, way in zip(pairs, directions, strict=True)]
        torch.stack(terms).sum().backward()
    assert_same_gradients(architecture, ours, theirs, head, source.content["task"])


def assert_near(mine: Tensor, other: Tensor, limit: float) -> None:
    assert mine.shape == other.shape
    assert (mine - other).abs().max() <= limit * other.abs().max()


def assert_same_gradients(
    architecture: Architecture, ours: Model, theirs: PreTrainedModel, head: str, task: str
) -> None:
    """Our gradients, written as weights are, are theirs."""
    in_file = fitting(ours.config, task, architecture.model_type)[1]
    own = dict(ours.named_parameters())
    expected = {
        name.removeprefix(architecture.prefix): weight.grad
        for name, weight in theirs.named_parameters()
        if weight.grad is not None
    }
    compared, limit = 0, IN_FLOAT32.get(architecture.model_type, EXACT)
    for rule in applicable(architecture, in_file, head)[0]:
        grad = own[rule.ours].grad
        if grad is None:  # a pooler that nobody asked
            continue
        for name, mine in rule.write(grad).items():
            other = expected.get(name.removeprefix(architecture.prefix))
            if other is None:  # theirs knows a tied weight by its other name
                continue
            compared += 1
            scale = max(other.abs().max().item(), 1e-3)
            assert (mine - other).abs().max() <= limit * scale, name
    assert compared > len(own) // 2


def _said(
    head: str, ours: Any, theirs: PreTrainedModel, lengths: list[int], seed: int
) -> list[tuple[Tensor, Tensor]]:
    if isinstance(ours, Encoder):
        return said(head, ours, theirs, lengths, seed)
    assert isinstance(ours, EncoderDecoder)
    size = ours.config.vocab_size
    source, real, layout = texts(lengths, size, seed)
    target, target_real, target_layout = texts(lengths[::-1], size, seed + 1)
    other = theirs(
        input_ids=source,
        attention_mask=real,
        decoder_input_ids=target,
        decoder_attention_mask=target_real,
    ).logits
    mine = ours(source, target, layout, target_layout)
    wanted = target_real.bool()
    return [(mine[wanted], other[wanted])]
