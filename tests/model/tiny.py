"""Tiny models and tokens, in float64 so that only mistakes make a difference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model import Layout, Model, build_model

VOCAB = 23


def tiny_config(**differences: object) -> ModelConfig:
    values = {
        "vocab_size": VOCAB,
        "d_model": 16,
        "n_heads": 4,
        "d_ff": 24,
        "max_length": 40,
        "n_encoder_layers": 2,
        "n_decoder_layers": 2,
    }
    return ModelConfig.from_dict({**values, **differences})


def tiny_model(**differences: object) -> Model:
    """A model in eval mode whose every weight matters (biases and norms drawn as well)."""
    model = build_model(tiny_config(**differences)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def tokens(*shape: int) -> Tensor:
    return torch.randint(VOCAB, shape)


def sequences(lengths: list[int]) -> list[Tensor]:
    return [tokens(length) for length in lengths]


def padded(rows: list[Tensor], extra: int = 0) -> tuple[Tensor, Layout]:
    """One sequence a row; padding is random, for nobody may look at it."""
    lengths = torch.tensor([len(row) for row in rows])
    table = tokens(len(rows), int(lengths.max()) + extra)
    for row, sequence in zip(table, rows, strict=True):
        row[: len(sequence)] = sequence
    return table, Layout(lengths=lengths)


def packed(rows: list[Tensor]) -> tuple[Tensor, Layout]:
    """All sequences end to end in one row."""
    sizes = torch.tensor([0, *(len(row) for row in rows)])
    layout = Layout(offsets=sizes.cumsum(0).to(torch.int32), longest=int(sizes.max()))
    return torch.cat(rows)[None], layout


def real(table: Tensor, layout: Layout) -> Tensor:
    """What stands at real positions of padded rows, end to end."""
    assert layout.lengths is not None
    return table[torch.arange(table.shape[1]) < layout.lengths[:, None]]


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def n_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
