"""Rotary positions: turned as the paper turns them, at the rates of each paper that scales them."""

import cmath
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkv.config import ModelConfig
from qkv.model import Order, Rotary
from qkv.model.positions.rotary import loudness, rates
from tests.model.tiny import assert_same, tiny_config, tiny_model, tokens


def config(d_head: int = 16, **differences: object) -> ModelConfig:
    values = {"positions": "rotary", "d_model": 4 * d_head, "max_length": 512}
    return tiny_config(**{**values, **differences})


def turned(rotary: Rotary, x: Tensor, positions: Tensor) -> Tensor:
    return Order.of(rotary, positions).turn(x)


SCALINGS = {
    "none": {},
    "linear": {"rotary_scaling": "linear", "rotary_factor": 4.0},
    "ntk": {"rotary_scaling": "ntk", "rotary_factor": 4.0},
    "yarn": {"rotary_scaling": "yarn", "rotary_factor": 4.0, "rotary_base": 100.0},
    "llama3": {"rotary_scaling": "llama3", "rotary_factor": 4.0, "rotary_base": 100.0},
}
ALL = pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)


# Rates and angles are float32, as they were where other people's checkpoints were trained: a rate
# is right to 7 digits, and at place 500 an angle is off by some 1e-5 radians.
RATE, ANGLE, SCORE = 1e-6, 3e-4, 3e-3


def assert_rates(config: ModelConfig, expected: list[float]) -> None:
    assert rates(config).tolist() == pytest.approx(expected, rel=RATE)


def plain(d_head: int, base: float) -> list[float]:
    """θᵢ = base^(-2i/d) for i = 0 … d/2 - 1 (Su et al. 2021)."""
    return [base ** (-2 * i / d_head) for i in range(d_head // 2)]


@pytest.mark.parametrize("base", [100.0, 10_000.0, 500_000.0])
@pytest.mark.parametrize("d_head", [2, 16, 64])
def test_rates_are_the_papers(d_head, base):
    assert_rates(config(d_head, rotary_base=base), plain(d_head, base))


def test_linear_divides_every_rate():
    """Position m of a text 4 times as long turns as m/4 did (Chen et al. 2023)."""
    assert_rates(
        config(rotary_scaling="linear", rotary_factor=4.0),
        [rate / 4 for rate in plain(16, 10_000.0)],
    )


def test_ntk_divides_the_slowest_rate_alone():
    """A larger base: each pair is slowed by the factor to the power of 2i/(d - 2)."""
    assert_rates(
        config(rotary_scaling="ntk", rotary_factor=4.0),
        [rate / 4 ** (2 * i / 14) for i, rate in enumerate(plain(16, 10_000.0))],
    )


@pytest.mark.parametrize(("slow", "fast"), [(1.0, 0.0), (2.0, 16.0)])
def test_llama3_divides_rates_by_their_wavelength(slow, fast):
    """Waves longer than L/slow are stretched, those under L/fast kept, a ramp between."""
    trained, factor, expected = 256, 8.0, []
    for rate in plain(16, 100.0):
        wave = 2 * math.pi / rate
        if wave < trained / (fast or 4.0):
            expected.append(rate)
        elif wave > trained / slow:
            expected.append(rate / factor)
        else:
            kept = (trained / wave - slow) / ((fast or 4.0) - slow)
            expected.append((1 - kept) * rate / factor + kept * rate)
    assert len({round(r / p, 9) for r, p in zip(expected, plain(16, 100.0), strict=True)}) >= 4
    found = config(
        rotary_scaling="llama3",
        rotary_factor=factor,
        rotary_base=100.0,
        rotary_trained_length=trained,
        rotary_slow=slow,
        rotary_fast=fast,
    )
    assert_rates(found, expected)


@pytest.mark.parametrize(("slow", "fast"), [(1.0, 0.0), (2.0, 16.0)])
def test_yarn_divides_rates_by_the_turns_that_a_pair_takes(slow, fast):
    """Pairs that turn over `fast` times are kept, under `slow` stretched, a ramp between.

    As in the paper's own code, the ramp runs over whole pairs: from the last that turns `fast`
    times to the first that does not turn `slow` times.
    """
    trained, factor, d_head, base = 4096, 8.0, 32, 1000.0
    turns = [trained * rate / (2 * math.pi) for rate in plain(d_head, base)]
    low = max(i for i, turn in enumerate(turns) if turn >= (fast or 32.0))
    high = min((i for i, turn in enumerate(turns) if turn <= slow), default=None)
    if high is None:  # it would be a pair beyond the last
        high = math.ceil(d_head / 2 * math.log(trained / (2 * math.pi * slow), base))
    expected = []
    for i, rate in enumerate(plain(d_head, base)):
        kept = 1 - min(max((i - low) / (high - low), 0), 1)
        expected.append(rate * kept + rate / factor * (1 - kept))
    assert 0 < low < d_head // 2 - 2
    found = config(
        d_head,
        rotary_scaling="yarn",
        rotary_factor=factor,
        rotary_base=base,
        rotary_trained_length=trained,
        rotary_slow=slow,
        rotary_fast=fast,
    )
    assert_rates(found, expected)


def test_the_trained_length_is_the_whole_context_over_the_factor():
    for name in ("yarn", "llama3"):
        scaled = {"rotary_scaling": name, "rotary_factor": 4.0, "rotary_base": 100.0}
        said = rates(config(**scaled, max_length=1024, rotary_trained_length=256))
        assert torch.equal(rates(config(**scaled, max_length=1024)), said)
        assert not torch.equal(rates(config(**scaled, max_length=2048)), said)


@ALL
def test_a_factor_of_one_changes_nothing(scaling):
    same = config(**{**scaling, "rotary_factor": 1.0, "rotary_base": 100.0})
    assert_rates(same, plain(16, 100.0))
    assert loudness(same) == 1


def test_yarn_makes_scores_larger():
    """q and k are both turned √(1/t) = 0.1·ln s + 1 times as long."""
    assert loudness(config(**SCALINGS["yarn"])) == pytest.approx(1.138629436111989)
    assert {loudness(config(**SCALINGS[name])) for name in SCALINGS if name != "yarn"} == {1.0}


@ALL
def test_pairs_turn_as_complex_numbers(scaling):
    """Dimension i and i + d/2, read as one complex number, times e^(imθᵢ)."""
    scaled = config(**scaling)
    rotary, positions = Rotary(scaled).double(), torch.tensor([0, 1, 7, 300, 511])
    x = torch.randn(1, 2, 5, 16, dtype=torch.float64)
    found = turned(rotary, x, positions)
    for t, position in enumerate(positions.tolist()):
        for i, rate in enumerate(rates(scaled).tolist()):
            for head in range(2):
                vector = x[0, head, t]
                pair = complex(vector[i], vector[i + 8]) * cmath.exp(1j * position * rate)
                pair *= loudness(scaled)
                assert found[0, head, t, i].item() == pytest.approx(pair.real, abs=ANGLE)
                assert found[0, head, t, i + 8].item() == pytest.approx(pair.imag, abs=ANGLE)


@ALL
@given(st.integers(0, 200), st.integers(0, 200), st.integers(-200, 300))
def test_scores_depend_on_distance_alone(scaling, m, n, shift):
    rotary = Rotary(config(**scaling)).double()
    query, key = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)

    def score(m: int, n: int) -> float:
        q, k = turned(rotary, query, torch.tensor([m])), turned(rotary, key, torch.tensor([n]))
        return (q * k).sum().item()

    shift = max(shift, -min(m, n))
    assert score(m + shift, n + shift) == pytest.approx(score(m, n), abs=SCORE)


def test_scores_of_ones_are_a_sum_of_waves():
    """1·R(n)·1 = 2·Σᵢ cos nθᵢ, the same forwards and backwards."""
    ones = torch.ones(1, 1, 9, 16, dtype=torch.float64)
    places = turned(Rotary(config()).double(), ones, torch.arange(9))[0, 0]
    for n in range(9):
        expected = 2 * sum(math.cos(n * rate) for rate in plain(16, 10_000.0))
        assert (places[n] @ places[0]).item() == pytest.approx(expected, abs=1e-5)
        assert (places[0] @ places[n]).item() == pytest.approx(expected, abs=1e-5)


@ALL
def test_lengths_are_kept(scaling):
    scaled = config(**scaling)
    x = torch.randn(2, 4, 512, 16, dtype=torch.float64)
    found = turned(Rotary(scaled).double(), x, torch.arange(512))
    torch.testing.assert_close(found.norm(dim=-1), loudness(scaled) * x.norm(dim=-1))


def test_the_first_position_is_not_turned():
    x = torch.randn(2, 4, 1, 16)
    assert torch.equal(turned(Rotary(config()), x, torch.tensor([0])), x)


def test_rows_may_have_positions_of_their_own():
    rotary, positions = Rotary(config()).double(), torch.tensor([[0, 1, 2], [9, 3, 3]])
    x = torch.randn(2, 4, 3, 16, dtype=torch.float64)
    rows = [turned(rotary, x[[b]], positions[b]) for b in range(2)]
    assert_same(turned(rotary, x, positions), torch.cat(rows))


def test_nothing_is_added_and_nothing_learnt():
    rotary = Rotary(config())
    x = torch.randn(1, 3, 64)
    assert rotary.add(x, torch.arange(3)) is x
    assert rotary.distances(torch.arange(3), torch.arange(3)) is None
    assert not rotary.state_dict() and not list(rotary.parameters())


def test_a_place_past_the_longest_sequence_is_an_error():
    with pytest.raises(IndexError):
        Rotary(config()).angles(torch.tensor([512]))


def test_bfloat16_rounds_the_angles_waves_and_not_the_angles():
    """Far out, an angle rounded to 8 bits would be off by whole turns."""
    rotary = Rotary(config(max_length=8192)).to(torch.bfloat16)
    for position in (1, 100, 8191):
        angles = rotary.angles(torch.tensor([position]))
        angle = position * rates(config()).double()
        assert angles.cosine.dtype == torch.bfloat16
        torch.testing.assert_close(angles.cosine[0, :8].double(), angle.cos(), atol=2e-3, rtol=0)
        torch.testing.assert_close(angles.sine[0, 8:].double(), angle.sin(), atol=2e-3, rtol=0)


def test_what_is_turned_keeps_its_type():
    rotary = Rotary(config())
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.randn(1, 4, 3, 16, dtype=dtype)
        assert turned(rotary, x, torch.arange(3)).dtype == dtype


@torch.no_grad()
def test_a_model_in_bfloat16_is_close():
    model = tiny_model(family="decoder", positions="rotary", max_length=64)
    row = tokens(2, 64)
    exact = model(row)
    half = model.to(torch.bfloat16)(row)
    assert half.dtype == torch.bfloat16
    assert (half.double() - exact).abs().max() < 0.05 * exact.abs().max()
    assert (half.double() - exact).abs().mean() < 0.005 * exact.abs().max()
