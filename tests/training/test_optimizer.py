"""Adam and the learning rate, against the formulas worked out by hand."""

import math

import pytest
import torch
from torch import nn

from qkv.config import TrainConfig, preset
from qkv.errors import UserError
from qkv.model import Decoder
from qkv.training import build_optimizer, learning_rate, update
from tests.training.helpers import step_with_drawn_gradients

RATE, DECAY = 0.01, 0.1


def adam_by_hand(weight: torch.Tensor, gradients: list[torch.Tensor], decay: float) -> torch.Tensor:
    """Kingma & Ba, algorithm 1, with decoupled decay (Loshchilov & Hutter, algorithm 2)."""
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for step, gradient in enumerate(gradients, start=1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.98 * square + 0.02 * gradient**2
        unbiased, unbiased_square = mean / (1 - 0.9**step), square / (1 - 0.98**step)
        weight = weight - RATE * decay * weight
        weight = weight - RATE * unbiased / (unbiased_square.sqrt() + 1e-9)
    return weight


def steps(model: nn.Module, config: TrainConfig, n_steps: int) -> dict[str, list[torch.Tensor]]:
    """Take steps with drawn gradients, and hand those back."""
    optimizer = build_optimizer(model, config)
    given = [step_with_drawn_gradients(model, optimizer, RATE) for _ in range(n_steps)]
    return {name: [drawn[name] for drawn in given] for name in given[0]}


def test_the_paper_s_adam_with_decoupled_decay_on_matrices_only() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)).double()
    nn.init.normal_(model[1].weight)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    given = steps(model, TrainConfig(weight_decay=DECAY), 5)
    assert {p.ndim for p in model.parameters()} == {1, 2}
    for name, parameter in model.named_parameters():
        expected = adam_by_hand(before[name], given[name], DECAY if parameter.ndim == 2 else 0.0)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-12)


def test_every_weight_is_trained_once() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=True))
    model[1].weight = model[0].weight  # tied
    groups = build_optimizer(model, TrainConfig()).param_groups
    assert sorted(map(id, (p for group in groups for p in group["params"]))) == sorted(
        {id(p) for p in model.parameters()}
    )


@pytest.mark.parametrize(("clip", "norm"), [(1.0, 1.0), (100.0, 5.0), (0.0, 5.0)])
def test_a_gradient_over_the_limit_is_scaled_down(clip: float, norm: float) -> None:
    model = nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.tensor([[3.0, 4.0]])
    seen: list[torch.Tensor] = []

    class Noting(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            assert model.weight.grad is not None
            seen.append(model.weight.grad.clone())

    update(model, Noting(model.parameters(), lr=0.0), clip)
    torch.testing.assert_close(seen[0], torch.tensor([[0.6, 0.8]]) * norm)
    assert model.weight.grad is None  # forgotten, or the next step would add to it


@pytest.mark.parametrize("step", [1, 2, 3999, 4000, 4001, 50_000])
def test_the_paper_s_formula_where_no_rate_is_given(step: int) -> None:
    d_model, warmup = 512, 4000
    paper = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    config = TrainConfig(lr=0.0, warmup=warmup)
    assert learning_rate(step, config, d_model) == pytest.approx(paper, rel=1e-12)


def test_a_short_warmup_does_not_make_the_automatic_rate_dangerous() -> None:
    short = TrainConfig(lr=0.0, warmup=100)
    assert learning_rate(100, short, 128) == 1e-3  # the formula alone would give 0.0088
    assert learning_rate(400, short, 128) == pytest.approx(0.5e-3)
    assert learning_rate(100, TrainConfig(lr=0.005, warmup=100), 128) == 0.005  # as asked for


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("inverse_sqrt", {1: 0.2, 5: 1.0, 20: 0.5, 80: 0.25, 105: math.sqrt(5 / 105)}),
        ("linear", {1: 0.2, 5: 1.0, 30: 0.75, 55: 0.5, 105: 0.0, 200: 0.0}),
        ("cosine", {1: 0.2, 5: 1.0, 30: 0.5 + 0.25 * math.sqrt(2), 55: 0.5, 105: 0.0, 200: 0.0}),
        ("constant", {1: 0.2, 4: 0.8, 5: 1.0, 30: 1.0, 105: 1.0}),
    ],
)
def test_a_rise_over_the_warm_up_and_then_the_schedule_s_fall(
    schedule: str, expected: dict[int, float]
) -> None:
    config = TrainConfig(lr=2.0, warmup=5, steps=105, schedule=schedule)  # type: ignore[arg-type]
    for step, share in expected.items():
        assert learning_rate(step, config, d_model=64) == pytest.approx(2.0 * share, abs=1e-12)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "linear", "cosine", "constant"])
def test_without_a_warm_up_the_first_steps_are_near_the_peak(schedule: str) -> None:
    config = TrainConfig(lr=0.5, warmup=0, steps=100, schedule=schedule)  # type: ignore[arg-type]
    assert learning_rate(1, config, 64) == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_frozen_weights_stay_and_the_others_move(optimizer):
    torch.manual_seed(0)
    model = Decoder(preset("llama-tiny", d_model=16, d_ff=24, n_decoder_layers=2, vocab_size=20))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    frozen = ("embedding", "decoder.blocks.0.")
    steps(model, TrainConfig(optimizer=optimizer, lr=RATE, freeze=frozen), 2)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]) == name.startswith(frozen), name


def test_freezing_nothing_or_everything_is_a_mistake():
    model = nn.Sequential(nn.Linear(2, 3))
    with pytest.raises(UserError, match=r"begins with 'body'; they are called 0\.weight, 0\.bias"):
        build_optimizer(model, TrainConfig(freeze=("body",)))
    with pytest.raises(UserError, match="nothing is left to train"):
        build_optimizer(model, TrainConfig(freeze=("0.",)))
