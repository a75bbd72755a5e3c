"""Small models of the three families, and what they read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from qkv.config import ModelConfig
from qkv.inspect import IGNORE, Reading, Trace, lay, lay_labels
from qkv.inspect.reading import unnamed
from qkv.model import build_model

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 23,
    "d_model": 16,
    "n_heads": 4,
    "d_ff": 24,
    "max_length": 16,
    "n_encoder_layers": 2,
    "n_decoder_layers": 3,
}
# fmt: off
CONFIGS = {
    "encoder-decoder": ModelConfig(**SIZES),
    "encoder": ModelConfig(
        family="encoder", positions="learned", embedding_scale=False, embedding_norm=True,
        n_segments=2, activation="gelu", head="sequence", n_labels=3, **SIZES,
    ),
    "decoder": ModelConfig(
        family="decoder", positions="rotary", norm="rms", norm_position="pre", activation="silu",
        gated=True, bias=False, n_kv_heads=2, embedding_scale=False, tie="none", **SIZES,
    ),
}
# fmt: on


def side(*rows):
    return lay(rows, 0, unnamed, CPU)


# fmt: off
READINGS = {
    "encoder-decoder": Reading(
        source=side([4, 5, 6, 7, 3], [8, 9, 3]), target=side([2, 10, 11, 12], [2, 13]),
        labels=lay_labels([[10, 11, 12, 3], [13, 3]], CPU),
    ),
    "encoder": Reading(
        source=side([2, 4, 5, 3, 6, 3], [2, 7, 3]), labels=torch.tensor([2, 0]), says="classes",
        segments=torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]]),
        name=lambda ids: [f"class {id}" for id in ids],
    ),
    "decoder": Reading(
        target=side([2, 4, 5, 6, 7], [2, 8]),
        labels=lay_labels([[4, 5, 6, 7, IGNORE], [8, IGNORE]], CPU),
    ),
}
# fmt: on


def make_trace(family: str, **changes) -> Trace:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = build_model(replace(CONFIGS[family], **changes))
        for parameter in model.parameters():  # norms and biases begin as 1 and 0: make them count
            parameter.data += 0.1 * torch.randn_like(parameter)
    return Trace(model, READINGS[family])


@pytest.fixture(params=list(CONFIGS))
def trace(request) -> Trace:
    return make_trace(request.param)
