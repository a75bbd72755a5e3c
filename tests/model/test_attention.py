"""The two paths of attention, held against each other and against loops over plain numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.config import ModelConfig
from qkv.model import Attention, Mask, Order, Positions, equation, fast, use_path
from tests.model import reference
from tests.model.reference import KINDS, Case, cases

PATHS = pytest.mark.parametrize("path", [fast, equation])
HEADS, D_HEAD = 4, 3
SCALE = D_HEAD**-0.5


def tensors(case: Case, kv_heads: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random query, key, value and bias in float64."""
    draw = torch.Generator().manual_seed(seed)
    shapes = [
        (case.batch, HEADS, case.n_queries, D_HEAD),
        (case.batch, kv_heads, case.n_keys, D_HEAD),
        (case.batch, kv_heads, case.n_keys, D_HEAD),
        (1, HEADS, case.n_queries, case.n_keys),
    ]
    query, key, value, bias = (
        torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes
    )
    return query, key, value, bias


kv_heads = st.sampled_from([1, 2, 4])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", ["none", "given", "learnt"])  # each takes another kernel
@settings(max_examples=20)
@given(st.data(), kv_heads, st.integers(0, 100))
def test_the_paths_are_one_function(kind, bias, data, kv_heads, seed):
    """Forward and backward."""
    case = data.draw(cases(kind))
    query, key, value, drawn = tensors(case, kv_heads, seed)
    leaves = [query, key, value, drawn] if bias == "learnt" else [query, key, value]
    added = {"none": None, "given": drawn.detach(), "learnt": drawn}[bias]
    cotangent = torch.randn(query.shape, dtype=torch.float64)
    outputs = [path(query, key, value, case.mask, SCALE, added) for path in (fast, equation)]
    gradients = [torch.autograd.grad(output, leaves, cotangent) for output in outputs]
    torch.testing.assert_close(*outputs, atol=1e-12, rtol=0)
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", ["none", "given", "learnt"])
@settings(max_examples=20)
@given(st.data(), kv_heads, st.integers(0, 100))
def test_training_in_bfloat16_is_the_equation_but_for_rounding(kind, bias, data, kv_heads, seed):
    """Forward and backward, on a CPU."""
    case = data.draw(cases(kind))
    exact = tensors(case, kv_heads, seed)
    rounded = [x.detach().bfloat16().requires_grad_() for x in exact]
    exact = [x.detach().double().requires_grad_() for x in rounded]
    cotangent = torch.randn(exact[0].shape, dtype=torch.float64).bfloat16()
    results = []
    for path, (*leaves, drawn) in ((fast, rounded), (equation, exact)):
        added = {"none": None, "given": drawn.detach(), "learnt": drawn}[bias]
        output = path(*leaves, case.mask, SCALE, added)
        leaves += [drawn] if bias == "learnt" else []
        results.append([output, *torch.autograd.grad(output, leaves, cotangent.to(output.dtype))])
    for found, expected in zip(*results, strict=True):
        assert found.dtype == torch.bfloat16
        scale = expected.abs().max().clamp(min=1.0)
        assert ((found - expected).abs().max() / scale) < 0.05


@PATHS
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(data=st.data(), kv_heads=kv_heads, with_bias=st.booleans())
@torch.no_grad()
def test_against_loops(path, kind, data, kv_heads, with_bias):
    case = data.draw(cases(kind))
    query, key, value, bias = tensors(case, kv_heads)
    bias = bias if with_bias else None
    expected = reference.attention(query, key, value, case.mask, SCALE, bias)
    found = path(query, key, value, case.mask, SCALE, bias)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


BLIND = {  # masks that leave some rows of queries with nothing to see, and those rows
    "padding": (Mask(key_lengths=torch.tensor([0, 5])), (0, slice(None), slice(None))),
    "causal padding": (Mask(causal=True, key_lengths=torch.tensor([0, 5])), (0, slice(None))),
    "window": (Mask(window=1, start=4), (slice(None), slice(None), slice(1, None))),
    "packed": (
        Mask(query_offsets=torch.tensor([0, 1, 3, 4]), key_offsets=torch.tensor([0, 2, 2, 5])),
        (slice(None), slice(None), slice(1, 3)),
    ),
}


@PATHS
@pytest.mark.parametrize("kind", BLIND)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_nothing_to_see_gives_zeros(path, kind, with_bias, dtype):
    mask, blind = BLIND[kind]
    case = Case(mask, 1 if mask.packed else 2, 4, 5)
    query, key, value, bias = (x.to(dtype) for x in tensors(case, HEADS))
    output = path(query, key, value, mask, SCALE, bias if with_bias else None)
    assert (output[blind] == 0).all()
    assert (output != 0).any()
    gradients = torch.autograd.grad(output.sum(), (query, key, value))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][blind] == 0).all()


@PATHS
def test_nobody_looks_at_hidden_keys(path):
    """Hidden keys and values get zero gradient, and may hold anything finite."""
    case = Case(Mask(key_lengths=torch.tensor([2, 4])), 2, 3, 6)
    query, key, value, _ = tensors(case, HEADS)
    output = path(query, key, value, case.mask, SCALE)
    for gradient in torch.autograd.grad(output.sum(), (key, value)):
        assert (gradient[0, :, 2:] == 0).all() and (gradient[1, :, 4:] == 0).all()
    other_key, other_value = (x.detach().clone() for x in (key, value))
    for other in (other_key, other_value):
        other[0, :, 2:], other[1, :, 4:] = 1e6, -1e6
    torch.testing.assert_close(
        path(query, other_key, other_value, case.mask, SCALE), output, atol=1e-12, rtol=0
    )


def config(**choices) -> ModelConfig:
    return ModelConfig(d_model=16, n_heads=4, **choices)


def look_at_itself(attention: Attention, x: Tensor) -> Tensor:
    return attention(x, Mask(), Order(Positions(), torch.arange(x.shape[1])))


@PATHS
@torch.no_grad()
def test_module_scales_by_the_root_of_one_heads_width(path):
    """One query, two keys: weights are a sigmoid of the difference of scores over √(D/H)."""
    attention = Attention(config(bias=False)).double()
    x = torch.randn(1, 2, 16, dtype=torch.float64)
    q, k, v = attention.query_key_value(x)[0].split(16, dim=-1)
    heads = []
    for h in range(4):
        mine = slice(4 * h, 4 * h + 4)
        difference = (k[0, mine] - k[1, mine]) @ q[:, mine].T / math.sqrt(4)
        first = torch.sigmoid(difference)[:, None]
        heads.append(first * v[0, mine] + (1 - first) * v[1, mine])
    expected = torch.cat(heads, dim=-1) @ attention.output.weight.T
    with use_path(attention, path):
        torch.testing.assert_close(look_at_itself(attention, x)[0], expected, atol=1e-12, rtol=0)


@torch.no_grad()
def test_grouped_heads_are_copied_heads():
    """Two key/value heads for four query heads: the same as four, two and two alike."""
    grouped, full = (Attention(config(n_kv_heads=n)).double() for n in (2, 4))
    weight, bias = grouped.query_key_value.weight, grouped.query_key_value.bias
    bias.normal_()
    assert weight.shape == (16 + 2 * 8, 16)
    rows = [*range(16)]
    for first in (16, 24):  # keys, then values; each head is four rows
        rows += [first + 4 * (head // 2) + i for head in range(4) for i in range(4)]
    full.query_key_value.weight.copy_(weight[rows])
    full.query_key_value.bias.copy_(bias[rows])
    full.output.load_state_dict(grouped.output.state_dict())
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    torch.testing.assert_close(
        look_at_itself(grouped, x), look_at_itself(full, x), atol=1e-12, rtol=0
    )


@PATHS
@torch.no_grad()
def test_rows_may_share_a_source(path):
    """Beams of one sentence, side by side, equal beams that each hold a copy of its source."""
    attention = Attention(config(), cross=True).double()
    source, lengths = torch.randn(2, 5, 16, dtype=torch.float64), torch.tensor([5, 3])
    x = torch.randn(6, 2, 16, dtype=torch.float64)  # three beams for each source
    copies = torch.tensor([0, 0, 0, 1, 1, 1])
    with use_path(attention, path):
        shared = attention.look(x, attention.remember(source), Mask(key_lengths=lengths))
        copied = attention.look(
            x, attention.remember(source[copies]), Mask(key_lengths=lengths[copies])
        )
    torch.testing.assert_close(shared, copied, atol=1e-12, rtol=0)


@PATHS
@torch.no_grad()
def test_dropout_is_for_training_only(path):
    dropped, plain = (Attention(config(attention_dropout=p)) for p in (0.5, 0.0))
    dropped.load_state_dict(plain.state_dict())
    x = torch.randn(2, 8, 16)
    with use_path(dropped, path), use_path(plain, path):
        expected = look_at_itself(plain.train(), x)
        assert torch.equal(look_at_itself(dropped.eval(), x), expected)
        dropped.train()
        first, second = look_at_itself(dropped, x), look_at_itself(dropped, x)
    assert not torch.allclose(first, second)
    assert not torch.allclose(first, expected)


@PATHS
def test_dropout_keeps_the_mean(path):
    """Half of 4,000 equal weights are dropped and the others doubled: a mean near 1."""
    query, key = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 4000, 2)
    output = path(query, key, torch.ones_like(key), Mask(), 1.0, dropout=0.5)
    assert (output != 1).all()
    assert (output - 1).abs().max() < 0.1


def test_use_path_gives_back_what_was():
    attention = Attention(config())
    with pytest.raises(RuntimeError, match="midway"), use_path(attention, equation):
        assert attention.attend is equation
        raise RuntimeError("midway")
    assert attention.attend is fast
