"""Residual: what the variants compute, gradients by differences, cosines by hand, verdicts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.model import Encoder, Residual
from qkv_labs import residual
from qkv_labs.lab import Settings
from qkv_labs.residual import TAUGHT


def double(x: Tensor) -> Tensor:
    return 2 * x + 1


def test_each_kind_is_its_formula() -> None:
    x = torch.randn(3, 4, residual.D_MODEL)
    norm = torch.nn.LayerNorm(residual.D_MODEL)
    expected = {"post": norm(x + double(x)), "pre": x + double(norm(x)), "without": norm(double(x))}
    expected["bare"] = double(x)
    for kind, output in expected.items():
        wraps = [m for m in residual.build(kind, 2).modules() if isinstance(m, Residual)]
        assert len(wraps) == 4
        for wrap in wraps:
            torch.testing.assert_close(wrap(x, double), output)


def test_all_kinds_have_the_same_weights_but_for_pre_norms_last() -> None:
    sizes = [sum(x.numel() for x in residual.build(k, 4).parameters()) for k in residual.KINDS]
    assert sizes[0] == sizes[2] == sizes[1] - 2 * residual.D_MODEL


def test_the_gradient_is_that_of_the_loss() -> None:
    """A step along the first block's gradient changes the loss by its norm squared."""
    model = residual.build("pre", 3).double()
    torch.manual_seed(5)
    first, last = residual.gradients(model)
    assert first != last
    torch.manual_seed(5)
    before = residual.loss_of(model)
    with torch.no_grad():
        for weight in model.encoder.blocks[0].parameters():
            assert weight.grad is not None
            weight -= 1e-7 * weight.grad
    torch.manual_seed(5)
    gained = (before - residual.loss_of(model)).detach()
    assert float(gained) / 1e-7 == pytest.approx(first**2, rel=1e-3)


def test_the_stream_begins_with_the_embeddings_and_ends_with_the_last_block() -> None:
    model = residual.build("post", 3)
    torch.manual_seed(1)
    states = residual.stream(model)
    torch.manual_seed(1)
    words = torch.randint(residual.N_WORDS, (64, residual.LENGTH))
    assert len(states) == 4
    torch.testing.assert_close(states[0], model.embedding(words))
    torch.testing.assert_close(states[-1], model.hidden(words))
    assert len(model.encoder.blocks[0]._forward_hooks) == 0


def test_what_is_kept_is_one_for_a_copy_and_nothing_for_an_unrelated_stream() -> None:
    x = torch.randn(16, 8, 32)
    common = torch.full((32,), 9.0)
    same, turned, fresh = residual.kept([x, 3 * x + common, -x, torch.randn(16, 8, 32) + common])[
        1:
    ]
    assert (same, turned) == pytest.approx((1.0, -1.0), abs=1e-5)
    assert abs(fresh) < 0.1


def test_likeness_is_one_when_all_tokens_are_the_same_and_zero_when_they_share_nothing() -> None:
    assert residual.alike(torch.ones(2, 5, 32)) == pytest.approx(1.0, abs=1e-5)
    assert residual.alike(torch.eye(5).expand(2, 5, 5)) == pytest.approx(0.0, abs=1e-6)


def test_the_better_rate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(kind: str, depth: int, seed: int, rate: float, steps: int) -> tuple[float, Encoder]:
        return depth + 10 * seed + rate, residual.build(kind, depth)

    monkeypatch.setattr(residual, "train", train)
    found = residual.measure_trained("pre", Settings(seed=5))
    best = max(residual.RATES)
    assert found.rates == [best] * len(TAUGHT)
    assert found.accuracies == [[n + 10 * seed + best for seed in (5, 6, 7)] for n in TAUGHT]
