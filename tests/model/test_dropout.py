"""Dropout, whose draws are our own on a CPU."""

import pytest
import torch

from qkv.model.dropout import Dropout, dropout


@pytest.mark.parametrize("probability", [0.05, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_so_many_elements_are_dropped_and_the_mean_stays(probability, dtype):
    torch.manual_seed(1)
    dropped = dropout(torch.ones(1000, 401, dtype=dtype), probability).double()
    kept = dropped[dropped != 0]
    assert abs(1 - kept.numel() / dropped.numel() - probability) < 0.003
    assert kept.unique().numel() == 1
    assert abs(dropped.mean() - 1) < 0.03
    # No element depends on its neighbours, which come from the same draw.
    rates = (dropped == 0).double().view(-1, 4).mean(dim=0)
    both = ((dropped[:, 1:] == 0) & (dropped[:, :-1] == 0)).double().mean()
    assert (rates - probability).abs().max() < 0.01
    assert abs(both - probability**2) < 0.01


def test_the_gradient_is_dropped_where_the_element_is():
    x = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    dropped = dropout(x, 0.3)
    (gradient,) = torch.autograd.grad(dropped.sum(), x)
    torch.testing.assert_close(dropped, x * gradient)
    assert 0 < (gradient == 0).sum() < x.numel()


def test_a_seed_decides_what_is_dropped():
    x = torch.ones(10, 33)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(dropout(x, 0.5))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_nothing_or_everything_is_dropped_at_the_ends():
    x = torch.randn(4, 4)
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(dropout(x, 1.0), torch.zeros_like(x))
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert not torch.equal(Dropout(0.5).train()(x), x)
