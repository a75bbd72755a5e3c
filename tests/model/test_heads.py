"""What stands on an encoder: pooling of full, padded and packed texts, and the heads' formulas."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from qkv.model import LabelHead, Layout, MaskedHead, Pooler, pool
from tests.model.tiny import assert_same, tiny_config

HOW = pytest.mark.parametrize("how", ["first", "mean", "last", "max", "weighted"])
sizes = st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any)


def one_by_one(rows: list[torch.Tensor], how: str) -> torch.Tensor:
    if how == "mean":
        return torch.stack([sum(row) / len(row) for row in rows])
    if how == "max":
        return torch.stack([row.max(dim=0).values for row in rows])
    if how == "weighted":
        numbers = [torch.arange(1.0, len(row) + 1, dtype=row.dtype) for row in rows]
        return torch.stack([n @ row / n.sum() for n, row in zip(numbers, rows, strict=True)])
    return torch.stack([row[0 if how == "first" else len(row) - 1] for row in rows])


def vectors(lengths: list[int]) -> list[torch.Tensor]:
    return [torch.randn(length, 3, dtype=torch.float64) for length in lengths]


@HOW
def test_full_rows(how):
    rows = vectors([5, 5])
    assert_same(pool(torch.stack(rows), Layout(), how), one_by_one(rows, how))


@HOW
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 3))
def test_padded_rows(how, lengths, extra):
    """Whatever stands in the padding."""
    rows = vectors(lengths)
    table = torch.randn(len(rows), max(lengths) + extra, 3, dtype=torch.float64)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = values
    found = pool(table, Layout(lengths=torch.tensor(lengths)), how)
    assert_same(found, one_by_one(rows, how))


@HOW
@given(sizes)
def test_packed_rows(how, lengths):
    """Empty sequences, wherever they stand, are finite and move no other."""
    rows = vectors(lengths)
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    found = pool(torch.cat(rows)[None], Layout(offsets=offsets, longest=6), how)
    assert found.shape == (len(lengths), 3) and found.isfinite().all()
    real = [index for index, length in enumerate(lengths) if length]
    assert_same(found[real], one_by_one([rows[index] for index in real], how))


@HOW
def test_a_row_of_padding_alone_is_finite(how):
    x = torch.randn(2, 3, 4, requires_grad=True)
    found = pool(x, Layout(lengths=torch.tensor([3, 0])), how)
    found.sum().backward()
    assert found.isfinite().all() and x.grad.isfinite().all()


@pytest.mark.parametrize("lay", ["full", "padded", "packed"])
def test_means_of_long_texts_keep_their_precision(lay):
    """3000 numbers of bfloat16 have the mean that they have, rounded once."""
    n_tokens = 3000
    layout = {
        "full": Layout(),
        "padded": Layout(lengths=torch.tensor([n_tokens])),
        "packed": Layout(offsets=torch.tensor([0, n_tokens]), longest=n_tokens),
    }[lay]
    x = (1 + torch.rand(1, n_tokens, 64)).bfloat16()
    found = pool(x, layout, "mean")
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, x.double().mean(dim=1).bfloat16())


@pytest.mark.parametrize("how", ["first", "mean", "last", "weighted"])
def test_gradients_reach_what_was_pooled_and_nothing_else(how):
    x = torch.randn(1, 6, 3, requires_grad=True)
    pool(x, Layout(offsets=torch.tensor([0, 2, 2, 6])), how)[[0, 2]].sum().backward()
    expected = {
        "first": [1, 0, 1, 0, 0, 0],
        "mean": [1 / 2] * 2 + [1 / 4] * 4,
        "last": [0, 1, 0, 0, 0, 1],
        "weighted": [1 / 3, 2 / 3, 0.1, 0.2, 0.3, 0.4],
    }[how]
    torch.testing.assert_close(x.grad[0], torch.tensor(expected)[:, None].expand(6, 3).float())


def test_poolers_are_their_formulas():
    x = torch.randn(2, 3, 16)
    plain = Pooler(tiny_config(pooler="none"))
    assert not list(plain.parameters()) and torch.equal(plain(x, Layout()), x[:, 0])
    for name, activation in (("tanh", torch.tanh), ("gelu", F.gelu)):
        pooler = Pooler(tiny_config(pooler=name, pooling="mean"))
        expected = activation(x.mean(dim=1) @ pooler.dense.weight.T + pooler.dense.bias)
        torch.testing.assert_close(pooler(x, Layout()), expected)


@pytest.mark.parametrize(("norm", "d_embedding"), [("layer", 0), ("rms", 0), ("layer", 6)])
def test_a_masked_head_is_its_formula(norm, d_embedding):
    """norm(act(x·W))·Eᵀ + b, where the embedding E may be narrower than x."""
    config = tiny_config(
        family="encoder", activation="gelu", norm=norm, d_embedding=d_embedding, tie="output"
    )
    table = nn.Embedding(config.vocab_size, config.embedding_width)
    head = MaskedHead(config, table)
    nn.init.normal_(head.projection.bias)
    x = torch.randn(2, 3, 16)
    inner = F.gelu(x @ head.dense.weight.T + head.dense.bias)
    assert inner.shape == (2, 3, d_embedding or 16)
    assert torch.equal(head.hidden(x), head.norm(inner))
    expected = head.hidden(x) @ table.weight.T + head.projection.bias
    torch.testing.assert_close(head(x), expected)
    assert head(x).shape == (2, 3, config.vocab_size)


@pytest.mark.parametrize(("tie", "same"), [("all", True), ("output", True), ("none", False)])
def test_a_masked_head_may_be_tied_to_the_embedding(tie, same):
    config = tiny_config(family="encoder", tie=tie)
    table = nn.Embedding(config.vocab_size, config.embedding_width)
    assert (MaskedHead(config, table).projection.weight is table.weight) == same


def test_a_label_head_drops_in_training_only():
    head = LabelHead(tiny_config(dropout=0.5), 3)
    x = torch.ones(200, 16)
    expected = x @ head.projection.weight.T + head.projection.bias
    assert expected.shape == (200, 3)
    torch.testing.assert_close(head.eval()(x), expected)
    dropped = head.train()(x)
    assert (dropped - expected).abs().mean() > 0.05
    torch.testing.assert_close(dropped.mean(dim=0), expected.mean(dim=0), atol=0.2, rtol=0)


def test_a_causal_model_s_labels_have_no_bias():
    """GPT's W_y stands alone."""
    head, x = LabelHead(tiny_config(family="encoder", causal=True), 3), torch.randn(2, 16)
    assert [name for name, _ in head.named_parameters()] == ["projection.weight"]
    torch.testing.assert_close(head.eval()(x), x @ head.projection.weight.T)
