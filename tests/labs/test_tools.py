"""Seeds stay inside, training descends as it says, and figures are written as people do."""

import math
from operator import itemgetter

import pytest
import torch
from torch import nn

from qkv_labs import tools


def test_a_seed_holds_inside_the_block_and_leaves_chance_alone() -> None:
    with tools.seeded(3):
        first = torch.rand(4)
    state = torch.random.get_rng_state()
    with pytest.raises(RuntimeError), tools.seeded(3):
        assert torch.rand(4).equal(first)
        raise RuntimeError
    assert torch.random.get_rng_state().equal(state)


def test_all_weights_are_counted_once() -> None:
    shared = nn.Linear(3, 4)
    assert tools.n_weights(nn.Sequential(shared, nn.Linear(4, 2), shared)) == 16 + 10


def test_fitting_finds_the_least_loss_and_tells_each_step() -> None:
    point = nn.Parameter(torch.tensor([4.0]))
    asked = []

    def loss(step: int) -> torch.Tensor:
        asked.append(step)
        return (point - 1).square().sum()

    losses = tools.fit(nn.ParameterList([point]), loss, 200, lr=0.1)
    assert asked == list(range(200)) and losses[0] == 9 and losses[-1] < 1e-3
    assert point.item() == pytest.approx(1, abs=0.05)
    assert tools.fit(nn.ParameterList([point]), loss, 0) == []


def test_the_rate_rises_over_the_warm_up_and_falls_as_a_cosine() -> None:
    """With a constant gradient each of Adam's steps is as long as its rate."""
    point = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    places = []

    def loss(step: int) -> torch.Tensor:
        places.append(point.item())
        return -point.sum()

    tools.fit(nn.ParameterList([point]), loss, 40, lr=0.1, warmup=10, clip=math.inf)
    moves = [b - a for a, b in zip(places, [*places[1:], point.item()], strict=True)]
    for step, move in enumerate(moves):
        rise = min(1, (step + 1) / 10)
        wanted = 0.1 * rise * (1 + math.cos(math.pi * step / 40)) / 2
        assert move == pytest.approx(wanted, rel=1e-6)


def test_means_and_spreads() -> None:
    assert tools.mean_and_spread([1.0, 3.0]) == (2, pytest.approx(math.sqrt(2)))
    assert tools.mean_and_spread([5.0]) == (5, 0)
    assert tools.plus_minus([1.0, 3.0], 2) == "2.00 ± 1.41"
    assert tools.plus_minus([5.0]) == "5.0"
    assert tools.plus_minus([0.01, 0.03], scale=100) == "2.0 ± 1.4"


@pytest.mark.parametrize("better", [1e-3, 1e-2])
def test_all_seeds_are_run_at_the_rate_that_was_best_with_the_first(better: float) -> None:
    asked = []

    def run(rate: float, seed: int) -> tuple[float, int]:
        asked.append((rate, seed))
        return float((rate == better) == (seed == 5)), seed  # later seeds would choose otherwise

    rate, runs = tools.at_best_rate(run, (1e-3, 1e-2), range(5, 8), itemgetter(0))
    assert rate == better
    assert asked == [(1e-3, 5), (1e-2, 5), (better, 6), (better, 7)]
    assert runs == [(1.0, 5), (0.0, 6), (0.0, 7)]


def test_the_exponent_of_a_power_is_found() -> None:
    sizes = [2, 5, 11]
    assert tools.exponent(sizes, [3 * size**1.7 for size in sizes]) == pytest.approx(1.7)
