"""The counter-based random numbers: uniform, independent, and a function of their place alone."""

import pytest
import torch

from qkv.decode import noise
from tests.decode.helpers import streams

STEP = torch.tensor(3)


def draws(n_sentences: int = 500, n_tokens: int = 200, seed: int = 0) -> torch.Tensor:
    return noise.uniform(streams(seed, range(n_sentences), 1), STEP, n_tokens).flatten()


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**40])
def test_uniform(seed):
    numbers = draws(seed=seed)
    counts = numbers.histc(100, 0, 1)
    # chi-square with 99 degrees of freedom: mean 99, standard deviation 14
    assert 55 < chi_square(counts, torch.full((100,), len(numbers) / 100)) < 155
    assert numbers.mean() == pytest.approx(0.5, abs=0.005)
    assert numbers.var() == pytest.approx(1 / 12, abs=0.002)
    assert numbers.min() > 0 and numbers.max() < 1


def test_neighbours_are_independent():
    ids = range(300)
    table = torch.stack(
        [noise.uniform(streams(7, ids, 3), torch.tensor(step), 100) for step in range(3)]
    )  # (step, sentence, draw, token)
    assert table.unique().numel() > 0.99 * table.numel()
    for dim in range(4):
        size = table.shape[dim] - 1
        one, next_one = table.narrow(dim, 0, size), table.narrow(dim, 1, size)
        together = torch.stack([one.flatten(), next_one.flatten()])
        assert torch.corrcoef(together)[0, 1].abs() < 0.01


def test_seeds_differ_in_every_bit():
    seeds = [0, *(1 << bit for bit in range(63))]
    found = torch.cat([streams(seed, range(4), 1) for seed in seeds])
    assert found.unique().numel() == 4 * 64


def test_a_number_depends_on_its_place_alone():
    many = noise.uniform(streams(5, [3, 8, 13], 4), STEP, 50)
    one = noise.uniform(streams(5, [8], 2), STEP, 20)
    assert torch.equal(many[1, :2, :20], one[0])


def test_mix_is_a_permutation_in_every_bit():
    """A changed input bit changes each output bit half of the time."""
    words = torch.arange(4096) * 1048573 & noise.WORD
    for bit in range(32):
        changed = noise.mix(words) ^ noise.mix(words ^ (1 << bit))
        flips = torch.stack([(changed >> place & 1).float().mean() for place in range(32)])
        assert (flips - 0.5).abs().max() < 0.1


def test_gumbel_argmax_draws_from_softmax():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0])
    drawn = (logits + noise.gumbel(streams(0, range(40_000), 1)[:, 0], STEP, 5)).argmax(dim=-1)
    expected = logits.softmax(-1) * len(drawn)
    assert chi_square(torch.bincount(drawn, minlength=5), expected) < 15  # 4 degrees of freedom
