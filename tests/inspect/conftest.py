"""Small models of the three families, and their inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from qkv.config import ModelConfig
from qkv.inspect import IGNORE, Inputs, Side, Trace, pad_labels
from qkv.inspect.answers.lens import stack_of
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
ENCODER = {
    "family": "encoder",
    "positions": "learned",
    "embedding_scale": False,
    "embedding_norm": True,
    "n_segments": 2,
    "activation": "gelu",
    "head": "sequence",
    "n_labels": 3,
}
DECODER = {
    "family": "decoder",
    "positions": "rotary",
    "norm": "rms",
    "norm_position": "pre",
    "activation": "silu",
    "gated": True,
    "bias": False,
    "n_kv_heads": 2,
    "embedding_scale": False,
    "tie": "none",
}
CONFIGS = {
    "encoder-decoder": ModelConfig(**SIZES),
    "encoder": ModelConfig(**SIZES, **ENCODER),
    "decoder": ModelConfig(**SIZES, **DECODER),
}


def side(*rows):
    return Side.pad(rows, 0, lambda ids: [f"#{id}" for id in ids], CPU)


INPUTS = {
    "encoder-decoder": Inputs(
        source=side([4, 5, 6, 7, 3], [8, 9, 3]),
        target=side([2, 10, 11, 12], [2, 13]),
        labels=pad_labels([[10, 11, 12, 3], [13, 3]], CPU),
    ),
    "encoder": Inputs(
        source=side([2, 4, 5, 3, 6, 3], [2, 7, 3]),
        labels=torch.tensor([2, 0]),
        output_kind="class",
        segments=torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]]),
        name=lambda ids: [f"class {id}" for id in ids],
    ),
    "decoder": Inputs(
        target=side([2, 4, 5, 6, 7], [2, 8]),
        labels=pad_labels([[4, 5, 6, 7, IGNORE], [8, IGNORE]], CPU),
    ),
}


def make_trace(family: str, **changes) -> Trace:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = build_model(replace(CONFIGS[family], **changes))
        for parameter in model.parameters():  # norms and biases begin as 1 and 0: make them count
            parameter.data += 0.1 * torch.randn_like(parameter)
    return Trace(model, INPUTS[family])


def passes_of(trace: Trace) -> list[int]:
    """A list that grows with every pass of the model's last stack."""
    passes: list[int] = []
    stack = getattr(trace.model, stack_of(trace, None))
    stack.register_forward_pre_hook(lambda *_: passes.append(1))
    return passes


@pytest.fixture(params=list(CONFIGS))
def trace(request) -> Trace:
    return make_trace(request.param)


@pytest.fixture
def no_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a font for Chinese."""
    monkeypatch.setattr("qkv.inspect.draw.fonts.chinese_font", lambda: None)
