"""Muon against singular values worked out one by one, torch's Muon and torch's AdamW."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from qkv.config import TrainConfig
from qkv.training import build_optimizer, learning_rate
from qkv.training.muon import Muon, hidden_weights, orthogonal
from qkv.training.optimizer import set_learning_rate
from tests.training.helpers import copy_of, small_model, step_with_drawn_gradients

RATE, DECAY = 0.05, 0.1
SHAPES = [(12, 12), (6, 20), (20, 6), (1, 9), (9, 1)]


def by_singular_values(matrix: Tensor) -> Tensor:
    """The polynomial, applied to each singular value as a number."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.square().sum().sqrt()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ values.diag() @ right


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def muon_of(hidden: dict[Tensor, int], others: list[Tensor] | None = None, **options) -> Muon:  # type: ignore[no-untyped-def]
    rest = [{"params": others or [nn.Parameter(torch.zeros(1))], "weight_decay": 0.0}]
    muon = Muon(hidden, rest, **{"weight_decay": 0.0, **options})
    set_learning_rate(muon, RATE)
    return muon


def stepped(weight: Tensor, rows: int, gradients: list[Tensor], **options) -> Tensor:  # type: ignore[no-untyped-def]
    """A weight after a step for each gradient."""
    parameter = nn.Parameter(weight.clone())
    muon = muon_of({parameter: rows}, **options)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        muon.step()
    return parameter.detach()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_iteration_is_a_polynomial_in_each_singular_value(shape: tuple[int, int]) -> None:
    stack = drawn(4, *shape)
    expected = torch.stack([by_singular_values(matrix) for matrix in stack])
    torch.testing.assert_close(orthogonal(stack), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(orthogonal(1e5 * stack), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("shape", [(32, 32), (16, 64), (64, 16)])
@pytest.mark.parametrize("condition", [1, 10, 50])
def test_singular_values_come_near_one(
    shape: tuple[int, int], condition: float, half: bool
) -> None:
    left, _, right = torch.linalg.svd(torch.randn(3, *shape), full_matrices=False)
    spread = torch.logspace(0, -torch.tensor(float(condition)).log10(), min(shape))
    values = torch.linalg.svdvals(orthogonal(left * spread @ right, half))
    assert values.min() > 0.6 and values.max() < 1.3


@given(st.lists(st.sampled_from([(4, 4), (3, 7), (7, 3)]), min_size=1, max_size=6))
def test_weights_move_together_as_they_move_alone(shapes: list[tuple[int, int]]) -> None:
    torch.manual_seed(len(shapes))
    weights = [nn.Parameter(drawn(*shape)) for shape in shapes]
    gradients = [drawn(*shape) for shape in shapes]
    alone = [stepped(w.detach(), len(w), [g]) for w, g in zip(weights, gradients, strict=True)]
    muon = muon_of({weight: len(weight) for weight in weights})
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    muon.step()
    for weight, expected in zip(weights, alone, strict=True):
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_by_hand(shape: tuple[int, int]) -> None:
    """Nesterov's momentum, the polynomial, √(R/C) for tall matrices, decoupled decay."""
    weight, gradients = drawn(*shape), [drawn(*shape) for _ in range(3)]
    expected, mean = weight, torch.zeros_like(weight)
    for gradient in gradients:
        mean = 0.95 * mean + 0.05 * gradient
        direction = by_singular_values(0.95 * mean + 0.05 * gradient)
        expected = expected * (1 - RATE * DECAY)
        expected = expected - RATE * max(1, shape[0] / shape[1]) ** 0.5 * direction
    found = stepped(weight, shape[0], gradients, weight_decay=DECAY)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shape", [(24, 24), (12, 36), (36, 12)])
def test_torch_s_own_muon_moves_the_same_way(shape: tuple[int, int]) -> None:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    weight, gradients = torch.randn(shape), [torch.randn(shape) for _ in range(3)]
    theirs = nn.Parameter(weight.clone())
    peer = torch.optim.Muon([theirs], lr=RATE, weight_decay=DECAY, momentum=0.95, nesterov=True)
    for gradient in gradients:
        theirs.grad = gradient.clone()
        peer.step()
    ours = stepped(weight, shape[0], gradients, weight_decay=DECAY, half=True)
    # Three moves of about RATE / √24 an element; theirs and ours round to bfloat16 apart.
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=0.05 * RATE)


def test_the_matrices_of_a_fused_weight_move_apart() -> None:
    weight, gradient = drawn(12, 8), drawn(12, 8)
    changed = gradient.clone()
    changed[4:8] = drawn(4, 8)
    before, after = stepped(weight, 4, [gradient]), stepped(weight, 4, [changed])
    for part in (slice(0, 4), slice(8, 12)):
        assert torch.equal(before[part], after[part])
        alone = weight[part] - RATE * by_singular_values(gradient[part])
        torch.testing.assert_close(before[part], alone, rtol=1e-9, atol=1e-9)
    assert (before[4:8] - after[4:8]).abs().min() > 0


@pytest.mark.parametrize("gated", [False, True])
def test_the_blocks_matrices_are_known_with_their_rows(gated: bool) -> None:
    model = small_model(d_model=12, n_heads=6, n_kv_heads=2, d_ff=10, gated=gated)
    hidden = hidden_weights(model)
    found = {name: hidden[p] for name, p in model.named_parameters() if p in hidden}
    expected = {
        "self_attention.query_key_value": 2,
        "self_attention.output": 12,
        "feed_forward.inner": 10,
        "feed_forward.outer": 12,
    }
    across = {"cross_attention.query": 2, "cross_attention.key_value": 2}
    across["cross_attention.output"] = 12
    assert found == {
        f"{stack}.blocks.0.{name}.weight": rows
        for stack, names in (("encoder", expected), ("decoder", expected | across))
        for name, rows in names.items()
    }


def test_all_else_is_adamw_bit_for_bit() -> None:
    ours, theirs = small_model(positions="learned"), small_model(positions="learned")
    settings = {"lr": 0.01, "weight_decay": DECAY}
    muon = build_optimizer(ours, TrainConfig(optimizer="muon", **settings))  # type: ignore[arg-type]
    adamw = build_optimizer(theirs, TrainConfig(optimizer="adamw", **settings))  # type: ignore[arg-type]
    for seed in range(3):
        for model, optimizer in ((ours, muon), (theirs, adamw)):
            torch.manual_seed(seed)
            step_with_drawn_gradients(model, optimizer, 0.01)
    hidden = hidden_weights(ours)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other) == (one not in hidden)


def test_without_a_gradient_to_follow_only_matrices_shrink() -> None:
    model = small_model()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
        parameter.grad = torch.zeros_like(parameter)
    before = copy_of(model)
    config = TrainConfig(optimizer="muon", lr=0.01, muon_lr=0.03, weight_decay=0.5)
    optimizer, hidden = build_optimizer(model, config), hidden_weights(model)
    set_learning_rate(optimizer, 0.01)
    optimizer.step()
    for name, parameter in model.named_parameters():
        rate = 0.0 if parameter.ndim < 2 else 0.03 if parameter in hidden else 0.01
        torch.testing.assert_close(parameter.detach(), before[name] * (1 - rate * 0.5))


@pytest.mark.parametrize("lr", [0.0, 0.004])
def test_the_schedule_multiplies_both_rates(lr: float) -> None:
    config = TrainConfig(optimizer="muon", lr=lr, muon_lr=0.03, warmup=10, schedule="linear")
    optimizer = build_optimizer(small_model(d_model=8), config)
    for step, share in ((5, 0.5), (10, 1.0), (10_005, 0.5)):
        rate = learning_rate(step, config, d_model=8)
        set_learning_rate(optimizer, rate)
        hidden, *others = (group["lr"] for group in optimizer.param_groups)
        assert hidden == pytest.approx(0.03 * share, rel=1e-3)
        assert others == [rate, rate]


def test_a_weight_without_a_gradient_stays() -> None:
    still, moving = nn.Parameter(drawn(4, 4)), nn.Parameter(drawn(4, 4))
    before, moving.grad = still.detach().clone(), drawn(4, 4)
    muon = muon_of({still: 4, moving: 4}, weight_decay=DECAY)
    muon.step()
    assert torch.equal(still, before) and still not in muon.state and moving in muon.state
