"""Disentangled positions: buckets of distances, and scores as sums of three products."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkv.model import Attention, Disentangled, Layout, Order, equation, fast, self_mask, use_path
from qkv.model.positions.disentangled import buckets
from tests.model.tiny import assert_same, sequences, tiny_config, tiny_model

PATHS = pytest.mark.parametrize("path", [fast, equation])
CHOICES = {"family": "encoder", "positions": "disentangled", "relative_buckets": 8}
n_buckets_and_farthest = st.tuples(st.integers(2, 80), st.integers(2, 600))


def disentangled(**choices: object) -> Disentangled:
    """Its table and its norm drawn so that every number matters."""
    scheme = Disentangled(tiny_config(**{**CHOICES, **choices})).double()
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter)
    return scheme


def test_buckets_by_hand():
    """Four of their own; then up to 8, 16, 32 and beyond, each bucket twice as wide as the last."""
    apart = torch.tensor([0, 1, 2, 3, 4, 5, 7, 9, 13, 15, 17, 25, 32, 33, 50])
    expected = [0, 1, 2, 3, 4, 5, 5, 6, 6, 6, 7, 7, 7, 8, 8]
    assert buckets(apart, n_buckets=8, farthest=33).tolist() == expected


def test_buckets_of_the_released_models():
    """256 to each side for 512 tokens: 128 + ⌈ln(d/128) / ln(511/128) · 127⌉."""
    apart = torch.tensor([1, 127, 128, 129, 140, 200, 300, 510, 511])
    expected = [1, 127, 128, 129, 137, 169, 207, 255, 255]
    assert buckets(apart, n_buckets=256, farthest=512).tolist() == expected


def test_few_distances_have_buckets_of_their_own():
    apart = torch.arange(-9, 10)
    assert torch.equal(buckets(apart, n_buckets=16, farthest=9), apart)


@given(n_buckets_and_farthest)
def test_buckets_are_a_ladder(sizes):
    """The same to both sides, distances themselves near 0, never falling, and to the last."""
    n_buckets, farthest = sizes
    half = n_buckets // 2
    ladder = buckets(torch.arange(farthest), n_buckets, farthest)
    assert torch.equal(ladder[: half + 1], torch.arange(min(half + 1, farthest)))
    assert (ladder.diff() >= 0).all()
    assert torch.equal(buckets(-torch.arange(farthest), n_buckets, farthest), -ladder)
    assert ladder[-1] == (2 * half - 1 if farthest - 1 > half else farthest - 1) < n_buckets


@given(n_buckets_and_farthest, st.integers(0, 700))
def test_every_distance_has_a_row_of_the_table(sizes, apart):
    """Those that are farther than the farthest share the first row or the last."""
    n_buckets, farthest = sizes
    scheme = Disentangled(
        tiny_config(
            **{**CHOICES, "relative_buckets": n_buckets},
            relative_length=farthest,
            max_length=600,
            d_model=4,
        )
    )
    number = scheme.distances(torch.tensor([0, apart]), torch.tensor([0, apart])).number
    assert number.shape == (2, 2) and (number.diagonal() == n_buckets).all()
    assert 0 <= number[0, 1] <= n_buckets <= number[1, 0] < 2 * n_buckets
    if apart < min(farthest, 600):
        bucket = buckets(torch.tensor(apart), n_buckets, farthest)
        assert number[1, 0] == n_buckets + bucket and number[0, 1] == n_buckets - bucket


def test_texts_longer_than_expected_have_rows_too():
    scheme = disentangled(max_length=10)
    places = torch.arange(50)
    number = scheme.distances(places, places).number
    assert (number[10:, 0] == number[9, 0]).all() and (number[0, 10:] == number[0, 9]).all()


def test_rows_with_places_of_their_own():
    """(B, T) positions give (B, 1, T, S) distances, each row's own."""
    scheme = disentangled()
    places = torch.tensor([[0, 1, 2, 3], [0, 0, 5, 30]])
    together = scheme.distances(places, places).number
    assert together.shape == (2, 1, 4, 4)
    for row, place in enumerate(places):
        assert torch.equal(together[row, 0], scheme.distances(place, place).number)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_bias_is_the_sum_of_both_directions(norm):
    """qᵢ·K_r(i-j) + Q_r(i-j)·kⱼ, one number at a time."""
    scheme = disentangled(norm=norm)
    weight = torch.randn(2, 16, 16, dtype=torch.float64)
    query, key = torch.randn(2, 2, 4, 20, 4, dtype=torch.float64)

    def project(vectors: Tensor) -> tuple[Tensor, Tensor]:
        both = (vectors @ weight).unflatten(-1, (4, 4)).transpose(1, 2)
        return both[0], both[1]

    places = torch.arange(20)
    found = Order.of(scheme, places).bias(query, key, project)
    relative_query, relative_key = project(scheme.norm(scheme.table.weight).detach())
    assert found.shape == (2, 4, 20, 20)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, (2, 4, 20, 20)))[::7].tolist():
        row = 8 + int(buckets(torch.tensor(i - j), 8, 40))
        to_position = sum(query[b, h, i] * relative_key[h, row])
        to_content = sum(relative_query[h, row] * key[b, h, j])
        assert found[b, h, i, j].item() == pytest.approx(float(to_position + to_content), abs=1e-12)


@PATHS
def test_attention_divides_the_sum_of_three_products(path):
    """softmax((QKᵀ + c2p + p2c) / √(3·D/H))·V, by the layer's own projections."""
    config = tiny_config(**CHOICES)
    layer, scheme = Attention(config).double(), disentangled()
    x, places = torch.randn(1, 15, 16, dtype=torch.float64), torch.arange(15)
    q, k, v = (
        part.unflatten(-1, (4, 4)).transpose(0, 1)  # (H, T, D/H)
        for part in layer.query_key_value(x)[0].chunk(3, dim=-1)
    )
    relative_q, relative_k, _ = (
        part.unflatten(-1, (4, 4)).transpose(0, 1)
        for part in layer.query_key_value(scheme.norm(scheme.table.weight)).chunk(3, dim=-1)
    )
    row = 8 + buckets(places[:, None] - places, 8, 40)
    total = torch.einsum("hid,hjd->hij", q, k)
    total = total + torch.einsum("hid,hijd->hij", q, relative_k[:, row])
    total = total + torch.einsum("hijd,hjd->hij", relative_q[:, row], k)
    heads = torch.softmax(total / math.sqrt(3 * 4), dim=-1) @ v
    expected = layer.output(heads.transpose(0, 1).flatten(1))
    with use_path(layer, path):
        found = layer(x, self_mask(Layout(), causal=False), Order.of(scheme, places))
    assert_same(found[0], expected)


@torch.no_grad()
def test_only_distances_count():
    """A text that stands elsewhere has the same scores; with other distances it has others."""
    scheme = disentangled()
    query, key = torch.randn(2, 1, 4, 6, 4, dtype=torch.float64)
    project = Attention(tiny_config(**CHOICES)).double().project
    biases = [
        Order.of(scheme, places).bias(query, key, project)
        for places in (torch.arange(6), torch.arange(6) + 30, torch.arange(6) * 2)
    ]
    assert_same(biases[1], biases[0])
    assert (biases[2] - biases[0]).abs().max() > 0.1


@torch.no_grad()
def test_both_sides_differ():
    """What stands before a token and what stands after it have vectors of their own."""
    model = tiny_model(**CHOICES)
    row = sequences([9])[0][None]
    assert (model(row.flip(1)).flip(1) - model(row)).abs().max() > 0.01


@PATHS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_row_of_padding_alone_does_no_harm(path, dtype):
    model = tiny_model(**CHOICES).to(dtype)
    tokens = torch.stack(sequences([4, 4]))
    with use_path(model, path):
        found = model(tokens, Layout(lengths=torch.tensor([4, 0])))
    assert found.isfinite().all()
    found.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_distances_that_occur_learn():
    scheme = disentangled()
    places = torch.arange(3)
    query, key = torch.randn(2, 1, 4, 3, 4, dtype=torch.float64)
    project = Attention(tiny_config(**CHOICES)).double().project
    Order.of(scheme, places).bias(query, key, project).sin().sum().backward()
    used = scheme.table.weight.grad.abs().sum(-1).nonzero().flatten()
    assert used.tolist() == [6, 7, 8, 9, 10]


def test_the_table_is_all_that_is_kept():
    shapes = {name: tuple(value.shape) for name, value in disentangled().state_dict().items()}
    assert shapes == {"table.weight": (16, 16), "norm.weight": (16,), "norm.bias": (16,)}
