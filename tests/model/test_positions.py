"""How order enters: the paper's waves and learnt vectors."""

import math

import pytest
import torch

from qkv.model import Layout, Learned, Order, Positions, Sinusoidal, Stack, sinusoids
from qkv.model.positions import SCHEMES, build_positions
from qkv.model.positions.alibi import head_slopes
from tests.model.tiny import assert_same, tiny_config


@pytest.mark.parametrize(("length", "d_model"), [(1, 2), (50, 6), (1024, 64)])
def test_sinusoids_are_the_papers_formula(length, d_model):
    table = sinusoids(length, d_model)
    assert table.shape == (length, d_model) and table.dtype == torch.float32
    for position in {0, 1, length // 2, length - 1} & set(range(length)):
        for i in range(d_model // 2):
            angle = position / 10000 ** (2 * i / d_model)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)


def test_halves_are_the_same_numbers_permuted():
    table, halves = sinusoids(30, 10), sinusoids(30, 10, halves=True)
    assert torch.equal(halves, table[:, [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]])


@pytest.mark.parametrize("shift", [1, 7])
def test_a_shift_is_a_rotation(shift):
    """PE(pos + k) = R_k·PE(pos) with one R_k for every pos: what the paper chose the waves for."""
    table = sinusoids(60, 8).double()
    rotation = torch.zeros(8, 8, dtype=torch.float64)
    for i in range(4):
        angle = shift / 10000 ** (2 * i / 8)
        sin, cos = math.sin(angle), math.cos(angle)
        rotation[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor([[cos, sin], [-sin, cos]])
    torch.testing.assert_close(table[shift:], table[:-shift] @ rotation.T, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["sinusoidal", "sinusoidal_halves", "learned"])
def test_schemes_add_the_row_of_each_position(name):
    config = tiny_config(positions=name)
    scheme = build_positions(config)
    x, positions = torch.randn(2, 4, 16), torch.tensor([3, 0, 39, 3])
    if name == "learned":
        assert isinstance(scheme, Learned)
        table = scheme.table.weight
    else:
        table = sinusoids(40, 16, halves=name == "sinusoidal_halves")
    assert torch.equal(scheme.add(x, positions), x + table[positions])


def test_alibi_is_the_papers_formula():
    """Of 8 heads, slopes are 1/2, 1/4, …, 1/256; 3 have those of 2, and the first of 4."""
    config = tiny_config(positions="alibi", n_heads=8)
    order = Order.of(build_positions(config), torch.arange(5))
    bias = order.bias(None, None, None) * config.score_scale
    apart = (torch.arange(5)[:, None] - torch.arange(5)).abs()
    for head in range(8):
        torch.testing.assert_close(bias[0, head], -(2.0 ** -(head + 1)) * apart)
    found = head_slopes(3)
    torch.testing.assert_close(found, torch.tensor([2.0**-4, 2.0**-8, 2.0**-2]))


def test_only_learnt_positions_are_weights():
    assert [*Sinusoidal(tiny_config()).state_dict()] == []
    learned = build_positions(tiny_config(positions="learned"))
    assert {name: tuple(value.shape) for name, value in learned.state_dict().items()} == {
        "table.weight": (40, 16)
    }


def test_learnt_positions_get_gradients_where_they_stand():
    learned = Learned(tiny_config())
    learned.add(torch.zeros(3, 2, 16), torch.tensor([1, 5])).sum().backward()
    used = learned.table.weight.grad.abs().sum(-1).nonzero().flatten()
    assert used.tolist() == [1, 5]
    assert (learned.table.weight.grad[used] == 3).all()


def test_no_scheme_changes_nothing():
    scheme = build_positions(tiny_config(positions="none"))
    assert type(scheme) is Positions
    x, places = torch.randn(1, 2, 3, 4), torch.arange(3)
    order = Order(scheme, places)
    assert scheme.add(x, places) is x and order.turn(x) is x
    assert order.bias(x, x, lambda vectors: (vectors, vectors)) is None


@torch.no_grad()
@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_positions_restart_in_each_packed_sequence(name):
    """A stack without blocks shows its input: x + PE, from 0 in every sequence."""
    stack = Stack(tiny_config(positions=name), n_layers=0, causal=True).double().eval()
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    layout = Layout(offsets=torch.tensor([0, 2, 5], dtype=torch.int32), longest=3)
    assert_same(stack(x, layout), stack.positions.add(x, torch.tensor([0, 1, 0, 1, 2])))


@torch.no_grad()
def test_order_matters_through_positions_alone():
    """Without positions an encoder cannot tell one order from another; with them it can."""
    reverse = torch.arange(4, -1, -1)
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    for name, same in [("none", True), ("sinusoidal", False), ("learned", False)]:
        stack = Stack(tiny_config(positions=name), n_layers=2, causal=False).double().eval()
        turned = stack(x[:, reverse], Layout())[:, reverse]
        assert torch.allclose(turned, stack(x, Layout()), atol=1e-10) == same


@pytest.mark.parametrize("name", [*SCHEMES, "relative"])
def test_the_config_knows_which_schemes_bias_the_scores(name):
    config = tiny_config(family="encoder", positions=name)
    overridden = type(build_positions(config)).bias is not Positions.bias
    assert overridden == config.biases_scores
