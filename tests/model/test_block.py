"""What a block is made of: the feed-forward layer, norms and the residual wrap."""

import math

import pytest
import torch
from torch import nn

from qkv.model import Block, FeedForward, Mask, Order, Positions, Residual
from qkv.model.norm import build_norm
from tests.model.tiny import assert_same, n_parameters, tiny_config

ACTIVATIONS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


def vectors(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@torch.no_grad()
def test_feed_forward_is_its_equation(activation, gated):
    """act(x·W₁ + b₁)·W₂ + b₂, and gated: (act(x·W_gate) * x·W₁)·W₂, the gate's rows first."""
    layer = FeedForward(tiny_config(activation=activation, gated=gated)).double()
    x = vectors(2, 3, 16)
    inner = x @ layer.inner.weight.T + layer.inner.bias
    hidden = inner[..., :24].clone().apply_(ACTIVATIONS[activation])
    if gated:
        hidden = hidden * inner[..., 24:]
    assert inner.shape[-1] == (48 if gated else 24)
    assert_same(layer.hidden(x), hidden)
    assert_same(layer(x), hidden @ layer.outer.weight.T + layer.outer.bias)


def test_bias_is_a_choice():
    """Without it, no projection has one; a block of matrices and norms is left."""
    block = Block(tiny_config(bias=False), cross=True)
    biased = {name for name, _ in block.named_parameters() if name.endswith("bias")}
    assert biased == {f"{part}_residual.norm.bias" for part in PARTS}
    d, f = 16, 24
    assert n_parameters(block) == 8 * d * d + 2 * d * f + 6 * d


PARTS = ("self_attention", "cross_attention", "feed_forward")


@torch.no_grad()
def test_norms_are_their_equations():
    x = vectors(2, 3, 16)
    layer, rms = (
        build_norm(tiny_config(norm=n, norm_epsilon=0.5)).double() for n in ("layer", "rms")
    )
    for norm in (layer, rms):
        norm.weight.normal_()
    layer.bias.normal_()
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    assert_same(layer(x), (x - mean) / (variance + 0.5).sqrt() * layer.weight + layer.bias)
    square = (x**2).mean(-1, keepdim=True)
    assert_same(rms(x), x / (square + 0.5).sqrt() * rms.weight)
    assert [name for name, _ in rms.named_parameters()] == ["weight"]
    plus_one = build_norm(tiny_config(norm="rms_plus_one", norm_epsilon=0.5)).double()
    assert not plus_one.weight.any()  # so that it begins as the other does
    plus_one.weight.normal_()
    assert_same(plus_one(x), x / (square + 0.5).sqrt() * (1 + plus_one.weight))


@pytest.mark.parametrize("position", ["post", "pre", "both"])
@torch.no_grad()
def test_residual_is_post_or_pre_or_both(position):
    x, other = vectors(2, 3, 16), vectors(2, 3, 16)
    wrap = Residual(tiny_config(norm_position=position)).double().eval()
    for parameter in wrap.parameters():
        parameter.normal_()
    equations = {
        "post": lambda read: wrap.norm(x + read.sin()),
        "pre": lambda read: x + wrap.norm(read).sin(),
        "both": lambda read: x + wrap.output_norm(wrap.norm(read).sin()),
    }
    assert_same(wrap(x, torch.sin), equations[position](x))
    assert_same(wrap(x, torch.sin, read=other), equations[position](other))


@pytest.mark.parametrize("position", ["post", "pre"])
def test_residual_drops_the_sublayers_output_alone(position):
    """With everything dropped, x passes through (and its norm, where that comes after)."""
    wrap = Residual(tiny_config(norm_position=position, dropout=1.0)).train()
    x = torch.randn(2, 3, 16)
    expected = wrap.norm(x) if position == "post" else x
    torch.testing.assert_close(wrap(x, torch.exp), expected)
    assert not torch.allclose(wrap.eval()(x, torch.exp), expected)


def test_activation_dropout_is_for_training_only():
    layer = FeedForward(tiny_config(activation_dropout=1.0))
    nn.init.normal_(layer.outer.bias)
    x = torch.randn(2, 16)
    assert torch.equal(layer.train()(x), layer.outer.bias.expand(2, 16))
    assert not torch.allclose(layer.eval()(x), layer.outer.bias)


@torch.no_grad()
def test_block_is_its_sublayers_in_order():
    """Self-attention, cross-attention, feed-forward; each wrapped in its own residual."""
    block = Block(tiny_config(), cross=True).double().eval()
    x, mask = vectors(2, 3, 16), Mask(causal=True)
    order = Order(Positions(), torch.arange(3))
    memory = block.cross_attention.remember(vectors(2, 4, 16))
    residuals = [getattr(block, f"{part}_residual") for part in PARTS]
    sublayers = [
        lambda x: block.self_attention(x, mask, order),
        lambda x: block.cross_attention.look(x, memory, Mask()),
        block.feed_forward,
    ]
    expected = x
    for residual, sublayer in zip(residuals, sublayers, strict=True):
        expected = residual.norm(expected + sublayer(expected))
    assert_same(block(x, mask, order, memory=memory, memory_mask=Mask()), expected)
