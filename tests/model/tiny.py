"""Tiny models and tokens, in float64 so that only mistakes make a difference."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model import Layout, Model, build_model, equation, fast, use_path

VOCAB = 23
DECODERS: dict[str, dict[str, object]] = {
    "sinusoidal": {},
    "learned": {"n_kv_heads": 2, "positions": "learned", "norm_position": "pre"},
    "rotary": {"positions": "rotary", "n_kv_heads": 2, "norm": "rms", "bias": False},
    "window": {"positions": "rotary", "window": 3},
    "alternate": {"positions": "learned", "window": 2, "window_layers": "alternate"},
    "grouped window": {"n_kv_heads": 1, "window": 3, "window_layers": "alternate"},
    "alibi": {"positions": "alibi", "n_kv_heads": 2},
    "relative": {"positions": "relative", "relative_buckets": 8, "relative_length": 12},
    "gemma 2": {"positions": "rotary", "window": 3, "window_layers": "wf", "score_cap": 2.0},
    "gemma 3": {
        "positions": "rotary",
        "window": 3,
        "window_layers": "wf",
        "rotary_window_base": 30.0,
        "query_key_norm": True,
    },
}
"""What decoders differ in where tokens of one sequence meet, or those of several."""


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


def assert_paths_agree(model: Model, run: Callable[[], Tensor]) -> None:
    """The fast path gives what the equation gives, forward and backward."""
    results = []
    for path in (fast, equation):
        with use_path(model, path):
            found = run()
        results.append((found, *torch.autograd.grad(found.sin().sum(), list(model.parameters()))))
    torch.testing.assert_close(*results, atol=1e-11, rtol=0)


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def n_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
