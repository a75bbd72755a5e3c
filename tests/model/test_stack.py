"""Padding, packing and the future: what may never change a result."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from qkv.model import EncoderDecoder, Layout, Stack, equation, fast, use_path
from tests.model.tiny import (
    assert_same,
    packed,
    padded,
    real,
    sequences,
    tiny_config,
    tiny_model,
    tokens,
)

PATHS = pytest.mark.parametrize("path", [fast, equation])
CHOICES = [
    {},
    {"norm_position": "pre", "norm": "rms", "gated": True, "activation": "silu", "bias": False},
    {"n_kv_heads": 2, "positions": "learned", "tie": "none"},
    {"positions": "none", "n_kv_heads": 1, "output_bias": True, "embedding_scale": False},
]
CHOSEN = pytest.mark.parametrize("choices", CHOICES, ids=["paper", "pre-rms", "learned", "none"])
lengths = st.lists(st.integers(1, 7), min_size=1, max_size=4)


@PATHS
@CHOSEN
@torch.no_grad()
def test_packed_is_padded_is_one_by_one(path, choices):
    """Sequences laid out in three ways have the same hidden states and logits."""
    model = tiny_model(**choices)
    sources, targets = sequences([5, 1, 3, 8]), sequences([2, 6, 1, 4])
    with use_path(model, path):
        one_by_one = torch.cat(
            [model(x[None], y[None])[0] for x, y in zip(sources, targets, strict=True)]
        )
        (x, x_layout), (y, y_layout) = packed(sources), packed(targets)
        assert_same(model(x, y, x_layout, y_layout)[0], one_by_one)
        (x, x_layout), (y, y_layout) = padded(sources, extra=2), padded(targets, extra=3)
        assert_same(real(model(x, y, x_layout, y_layout), y_layout), one_by_one)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7)), min_size=1, max_size=4))
def test_packed_batches_have_the_loss_and_gradients_of_padded_ones(sizes):
    model = tiny_model()
    sources, targets = (sequences(list(side)) for side in zip(*sizes, strict=True))
    labels = sequences([len(target) for target in targets])
    losses, gradients = [], []
    for lay in (padded, packed):
        (x, x_layout), (y, y_layout) = lay(sources), lay(targets)
        logits = model(x, y, x_layout, y_layout)
        logits = real(logits, y_layout) if lay is padded else logits[0]
        losses.append(F.cross_entropy(logits, torch.cat(labels)))
        gradients.append(torch.autograd.grad(losses[-1], list(model.parameters())))
    assert_same(*losses)
    torch.testing.assert_close(*gradients, atol=1e-11, rtol=0)


@pytest.mark.parametrize("family", ["encoder", "decoder"])
@CHOSEN
@torch.no_grad()
def test_one_stack_families_packed_and_padded(family, choices):
    model = tiny_model(family=family, **choices)
    rows = sequences([4, 7, 1])
    one_by_one = torch.cat([model(row[None])[0] for row in rows])
    table, layout = padded(rows, extra=2)
    assert_same(real(model(table, layout), layout), one_by_one)
    assert_same(model(*packed(rows))[0], one_by_one)


@settings(max_examples=40)
@given(lengths, st.integers(0, 5), st.integers(0, 5))
@torch.no_grad()
def test_more_padding_changes_nothing(sizes, source_extra, target_extra):
    model = tiny_model()
    sources, targets = sequences(sizes), sequences(sizes[::-1])
    (x, x_layout), (y, y_layout) = padded(sources), padded(targets)
    expected = real(model(x, y, x_layout, y_layout), y_layout)
    (x, x_layout), (y, y_layout) = padded(sources, source_extra), padded(targets, target_extra)
    assert_same(real(model(x, y, x_layout, y_layout), y_layout), expected)


@PATHS
def test_a_row_of_padding_alone_does_no_harm(path):
    """It sees nothing, yields finite numbers and gradients, and changes no other row."""
    model = tiny_model()
    source, target = tokens(2, 4), tokens(2, 3)
    layout = Layout(lengths=torch.tensor([4, 0]))
    with use_path(model, path):
        logits = model(source, target, layout)
        assert_same(logits[:1], model(source[:1], target[:1]))
    assert logits.isfinite().all()
    logits.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def changed_positions(before: torch.Tensor, after: torch.Tensor) -> list[int]:
    return (before - after).abs().amax(dim=(0, 2)).gt(1e-9).nonzero().flatten().tolist()


@PATHS
@pytest.mark.parametrize("choices", CHOICES[:3], ids=["paper", "pre-rms", "learned"])
@torch.no_grad()
def test_no_token_sees_the_future(path, choices):
    """A changed token changes its own logits and later ones; in an encoder, all."""
    row = tokens(1, 6)
    other = row.clone()
    other[0, 3] = (row[0, 3] + 1) % 23
    both = tiny_model(**choices)
    decoder = tiny_model(family="decoder", **choices)
    encoder = tiny_model(family="encoder", **choices)
    source = tokens(1, 4)
    with use_path(both, path), use_path(decoder, path), use_path(encoder, path):
        assert changed_positions(both(source, row), both(source, other)) == [3, 4, 5]
        assert changed_positions(both(row, source), both(other, source)) == [0, 1, 2, 3]
        assert changed_positions(both.encode(row), both.encode(other)) == [0, 1, 2, 3, 4, 5]
        assert changed_positions(decoder(row), decoder(other)) == [3, 4, 5]
        assert changed_positions(encoder(row), encoder(other)) == [0, 1, 2, 3, 4, 5]


@torch.no_grad()
def test_packed_neighbours_do_not_meet():
    """Changing one packed pair changes no other."""
    model = tiny_model()
    sources, targets = sequences([3, 4, 2]), sequences([2, 3, 4])
    before = model(packed(sources)[0], packed(targets)[0], packed(sources)[1], packed(targets)[1])
    sources[1], targets[1] = tokens(4), tokens(3)
    after = model(packed(sources)[0], packed(targets)[0], packed(sources)[1], packed(targets)[1])
    assert changed_positions(before, after) == [2, 3, 4]


def test_a_pre_norm_stack_ends_in_a_norm():
    """Else its output would be the bare sum; a post-norm stack's last block has normed already."""
    pre, post = (Stack(tiny_config(norm_position=p), 1, causal=False) for p in ("pre", "post"))
    assert isinstance(pre.norm, nn.LayerNorm)
    assert not list(post.norm.parameters())
    for stack in (pre, post):
        output = stack.eval()(torch.randn(2, 3, 16), Layout())
        torch.testing.assert_close(output.mean(-1), torch.zeros(2, 3), atol=1e-6, rtol=0)
        torch.testing.assert_close(
            output.var(-1, correction=0), torch.ones(2, 3), atol=1e-3, rtol=0
        )


def test_input_dropout_is_for_training_only():
    """A stack without blocks shows its input."""
    stack = Stack(tiny_config(dropout=0.5), n_layers=0, causal=False)
    x = torch.randn(4, 8, 16)
    full = stack.eval()(x, Layout())
    torch.testing.assert_close(full, x + stack.positions.table[:8])
    dropped = stack.train()(x, Layout())
    kept = dropped != 0
    assert 0.3 < kept.float().mean() < 0.7
    torch.testing.assert_close(dropped[kept], 2 * full[kept])


@torch.no_grad()
def test_embeddings_are_scaled_by_the_root_of_d_model():
    scaled: EncoderDecoder = tiny_model()
    plain: EncoderDecoder = tiny_model(embedding_scale=False)
    table = scaled.target_embedding.table.weight
    assert_same(scaled.target_embedding(torch.tensor([[5, 7]])), 4 * table[[5, 7]][None])
    table = plain.target_embedding.table.weight
    assert_same(plain.target_embedding(torch.tensor([[5, 7]])), table[[5, 7]][None])
