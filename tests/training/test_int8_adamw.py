"""AdamW with 8-bit moments against AdamW, and its codes against the values that they stand for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from qkv.config import TrainConfig
from qkv.errors import UserError
from qkv.model import Decoder
from qkv.training import Layout, build_optimizer, make_layout, update
from qkv.training.int8_adamw import (
    BLOCK,
    decode_mean,
    decode_square,
    encode_mean,
    encode_square,
    thresholds,
)
from qkv.training.optimizer import set_learning_rate
from tests.model.tiny import tiny_config

CPU = torch.device("cpu")
CODES = {"mean": (encode_mean, decode_mean), "square": (encode_square, decode_square)}


def values(kind: str, spread: float = 3.0) -> Tensor:
    """Blocks whose elements are of many sizes."""
    torch.manual_seed(0)
    drawn = torch.randn(4, BLOCK) * torch.logspace(0, -spread, BLOCK)
    return drawn if kind == "mean" else drawn.square()


@pytest.mark.parametrize("kind", CODES)
@given(step=st.integers(1, 10_000))
def test_a_value_becomes_one_of_the_two_levels_around_it(kind: str, step: int) -> None:
    encode, decode = CODES[kind]
    exact, dtype = values(kind), torch.int8 if kind == "mean" else torch.uint8
    codes, scale = encode(exact, thresholds(step, CPU))
    assert torch.equal(codes.to(dtype).float(), codes)
    away = torch.where(exact < 0, -1.0, 1.0)
    lower, upper = decode(codes - away, scale), decode(codes + away, scale)
    assert ((exact.abs() >= lower.abs() * 0.9999) | (codes == 0)).all()
    assert (exact.abs() <= upper.abs() * 1.0001).all()


@pytest.mark.parametrize("kind", CODES)
def test_values_are_right_in_the_mean_over_steps(kind: str) -> None:
    encode, decode = CODES[kind]
    exact = values(kind, spread=1.5)
    total = torch.zeros_like(exact)
    for step in range(1000):
        total += decode(*encode(exact, thresholds(step, CPU)))
    largest = exact.abs().amax(dim=1, keepdim=True)
    assert ((total / 1000 - exact).abs() < 0.01 * exact.abs() + 1e-6 * largest).all()


def test_nothing_above_zero_becomes_zero() -> None:
    square = torch.full((1, BLOCK), 1e-12)
    square[0, 0], square[0, 1] = 1.0, 0.0
    codes, scale = encode_square(square, thresholds(1, CPU))
    assert codes.tolist() == [[255.0, 0.0] + [1.0] * (BLOCK - 2)]
    assert decode_square(codes, scale)[0, 0] == 1.0


@pytest.mark.parametrize("beta2", [0.98, 0.999])
def test_the_mean_square_follows_gradients_over_many_steps(beta2: float) -> None:
    """Rounding to the nearest level would ignore all but the largest gradients."""
    weight = nn.Parameter(torch.zeros(8, 300))
    config = TrainConfig(optimizer_state="int8", beta2=beta2)
    optimizer = build_optimizer(nn.ParameterList([weight]), config)
    sizes, exact = torch.logspace(0, -2, 300), torch.zeros(8, 300)
    torch.manual_seed(0)
    for _ in range(600):
        weight.grad = torch.randn(8, 300) * sizes
        exact = beta2 * exact + (1 - beta2) * weight.grad.square()
        optimizer.step()
    state = optimizer.state[weight]
    whole = state["exp_avg_sq"][: 9 * BLOCK].view(9, BLOCK)
    found = decode_square(whole, state["exp_avg_sq_scale"][:9])
    ratio = found.view(-1) / exact.view(-1)[: 9 * BLOCK]
    assert 0.98 < float(ratio.mean()) < 1.02
    assert float(ratio.log().std()) < 0.2


def test_the_state_takes_two_bytes_a_weight() -> None:
    weight = nn.Parameter(torch.zeros(64, BLOCK))
    optimizer = build_optimizer(nn.ParameterList([weight]), TrainConfig(optimizer_state="int8"))
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    tensors = optimizer.state[weight].values()
    n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert n_bytes == 2 * weight.numel() + 2 * 4 * 64 + 4


@pytest.mark.parametrize("shape", [(3, 5), (700,), (2, BLOCK)])
def test_the_first_step_is_adam_s_whatever_the_shape(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    start, grad = torch.randn(shape), torch.randn(shape)
    moved = []
    for state in ("float32", "int8"):
        weight = nn.Parameter(start.clone())
        config = TrainConfig(optimizer_state=state, weight_decay=0.1)  # type: ignore[arg-type]
        optimizer = build_optimizer(nn.ParameterList([weight]), config)
        set_learning_rate(optimizer, 0.01)
        weight.grad = grad.clone()
        optimizer.step()
        moved.append(weight.detach())
    torch.testing.assert_close(moved[1], moved[0], rtol=1e-5, atol=1e-6)


def losses(**settings: Any) -> list[float]:
    """The loss of each step of learning to predict a text, as `qkv train` takes steps."""
    torch.manual_seed(0)
    config = TrainConfig(clip=1.0, **settings)
    model = Decoder(tiny_config(family="decoder", d_model=32, d_ff=64, dropout=0.0))
    optimizer = build_optimizer(model, config)
    tokens = torch.randint(4, model.config.vocab_size, (8, 13))
    found = []
    for _ in range(120):
        set_learning_rate(optimizer, 3e-3)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        update(model, optimizer, config.clip)
        found.append(loss.item())
    return found


@pytest.mark.parametrize("beta2", [0.98, 0.999])
def test_training_is_as_good_as_with_float32(beta2: float) -> None:
    exact, small = losses(beta2=beta2), losses(beta2=beta2, optimizer_state="int8")
    assert exact[-1] < 0.25 * exact[0]
    assert small[-1] == pytest.approx(exact[-1], rel=0.03)
    assert small[60] == pytest.approx(exact[60], rel=0.03)


def test_weights_that_move_in_the_backward_pass_move_as_they_would_after_it() -> None:
    """Without clipping, and with one batch a step, no weight needs the gradient of another."""
    found = []
    for clip in (0.0, 1e9):
        torch.manual_seed(0)
        config = TrainConfig(optimizer_state="int8", clip=clip)
        model = Decoder(tiny_config(family="decoder", d_model=32, d_ff=64, dropout=0.0))
        layout = Layout(model, lambda batch, smoothing: batch.labels)
        optimizer = layout.build_optimizer(config)
        tokens = torch.randint(4, model.config.vocab_size, (2, 5))
        for _ in range(3):
            set_learning_rate(optimizer, 3e-3)
            model(tokens).square().mean().backward()
            held = [weight.grad for weight in model.parameters() if weight.grad is not None]
            assert bool(held) == bool(clip)
            layout.update(optimizer, clip)
        found.append({name: weight.detach() for name, weight in model.named_parameters()})
    for name, weight in found[0].items():
        assert torch.equal(found[1][name], weight), name


def test_parts_of_weights_are_refused() -> None:
    config = TrainConfig(optimizer_state="int8", shard="full")
    workers: Any = SimpleNamespace(size=2, tensor_size=1)
    with pytest.raises(UserError, match=r"train\.shard: optimizer_state = 'int8' has scales"):
        make_layout(Decoder(tiny_config(family="decoder")), lambda *_: None, config, workers)  # type: ignore[arg-type,return-value]


def test_muon_is_refused() -> None:
    with pytest.raises(UserError, match="leave it out with 'muon'"):
        TrainConfig(optimizer_state="int8", optimizer="muon")
