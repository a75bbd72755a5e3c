"""Our layers against torch's on copied weights, forward and backward, in float32.

Padding stands at the end of each row; what a layer makes of padding itself is nobody's business,
so the loss reads real positions only, and gradients are then compared everywhere.
"""

import pytest
import torch
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model import (
    Attention,
    Block,
    Layout,
    Mask,
    Order,
    Positions,
    cross_mask,
    equation,
    fast,
    self_mask,
    use_path,
)

TOLERANCE = 1e-5
D_MODEL, HEADS, D_FF, BATCH = 32, 4, 48, 3
SOURCE = torch.tensor([9, 4, 6])  # lengths
TARGET = torch.tensor([3, 7, 5])

PATHS = pytest.mark.parametrize("path", [fast, equation])
KINDS = pytest.mark.parametrize(
    ("norm_position", "activation"), [(n, a) for n in ("post", "pre") for a in ("relu", "gelu")]
)
Shared = list[tuple[Tensor, list[Tensor]]]  # theirs, and ours that stand one under the other


def config(**choices) -> ModelConfig:
    return ModelConfig(d_model=D_MODEL, n_heads=HEADS, d_ff=D_FF, dropout=0.0, **choices)


def shared_attention(theirs: nn.MultiheadAttention, ours: Attention) -> Shared:
    parts = [ours.query, ours.key_value] if hasattr(ours, "query") else [ours.query_key_value]
    return [
        (theirs.in_proj_weight, [part.weight for part in parts]),
        (theirs.in_proj_bias, [part.bias for part in parts]),
        *shared_plain(theirs.out_proj, ours.output),
    ]


def shared_plain(theirs: nn.Module, ours: nn.Module) -> Shared:
    return [(theirs.weight, [ours.weight]), (theirs.bias, [ours.bias])]


def shared_block(theirs: nn.Module, ours: Block) -> Shared:
    """Weights of a TransformerEncoderLayer or TransformerDecoderLayer and of our block."""
    shared = shared_attention(theirs.self_attn, ours.self_attention)
    norms = [ours.self_attention_residual.norm]
    if hasattr(theirs, "multihead_attn"):
        shared += shared_attention(theirs.multihead_attn, ours.cross_attention)
        norms.append(ours.cross_attention_residual.norm)
    norms.append(ours.feed_forward_residual.norm)
    for index, norm in enumerate(norms):
        shared += shared_plain(getattr(theirs, f"norm{index + 1}"), norm)
    shared += shared_plain(theirs.linear1, ours.feed_forward.inner)
    return shared + shared_plain(theirs.linear2, ours.feed_forward.outer)


@torch.no_grad()
def copy(theirs: nn.Module, ours: nn.Module, shared: Shared) -> None:
    """Make every weight matter (torch's biases start at 0), and ours the same as theirs."""
    assert len(shared) == len(list(theirs.parameters()))
    assert sum(len(mine) for _, mine in shared) == len(list(ours.parameters()))
    for their, mine in shared:
        their.add_(0.2 * torch.randn_like(their))
        for part, piece in zip(mine, their.split([len(part) for part in mine]), strict=True):
            part.copy_(piece)


def assert_same(theirs: Tensor, ours: Tensor, real: Tensor, leaves: Shared) -> None:
    """Compare outputs at real positions, and the gradients of leaves: inputs and weights."""
    torch.testing.assert_close(ours[real], theirs[real], atol=TOLERANCE, rtol=0)
    weight = torch.randn_like(ours) / real.sum()
    (theirs * weight)[real].sum().backward()
    (ours * weight)[real].sum().backward()
    for their, mine in leaves:
        assert their.grad.abs().max() > 1e-3
        grad = torch.cat([part.grad for part in mine])
        torch.testing.assert_close(grad, their.grad, atol=TOLERANCE, rtol=0)


def inputs(lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same random input for them and for us, and which positions are real."""
    x = torch.randn(BATCH, int(lengths.max()), D_MODEL)
    real = torch.arange(x.shape[1]) < lengths[:, None]
    return x.clone().requires_grad_(), x.clone().requires_grad_(), real


def order(x: Tensor) -> Order:
    return Order(Positions(), torch.arange(x.shape[1]))


def causal(length: int) -> Tensor:
    """Torch's mask: True where looking is forbidden."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


@PATHS
@pytest.mark.parametrize("is_causal", [False, True])
def test_self_attention(path, is_causal):
    theirs, ours = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True), Attention(config())
    shared = shared_attention(theirs, ours)
    copy(theirs, ours, shared)
    x, y, real = inputs(TARGET)
    mask = causal(x.shape[1]) if is_causal else None
    expected, _ = theirs(x, x, x, key_padding_mask=~real, attn_mask=mask)
    with use_path(ours, path):
        found = ours(y, self_mask(Layout(lengths=TARGET), is_causal), order(y))
    assert_same(expected, found, real, [(x, [y]), *shared])


@PATHS
def test_cross_attention(path):
    theirs = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
    ours = Attention(config(), cross=True)
    shared = shared_attention(theirs, ours)
    copy(theirs, ours, shared)
    x, y, real = inputs(TARGET)
    memory, our_memory, visible = inputs(SOURCE)
    expected, _ = theirs(x, memory, memory, key_padding_mask=~visible)
    with use_path(ours, path):
        mask = cross_mask(Layout(lengths=TARGET), Layout(lengths=SOURCE))
        found = ours.look(y, ours.remember(our_memory), mask)
    assert_same(expected, found, real, [(x, [y]), (memory, [our_memory]), *shared])


@PATHS
def test_attention_weights(path):
    """The weights that torch hands out are those of our equation."""
    theirs, ours = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True), Attention(config())
    copy(theirs, ours, shared_attention(theirs, ours))
    x, _, real = inputs(SOURCE)
    _, expected = theirs(x, x, x, key_padding_mask=~real, average_attn_weights=False)
    seen = []

    def spy(query, key, value, mask, scale, bias=None, dropout=0.0):
        everything = torch.eye(key.shape[-2]).expand(BATCH, HEADS, -1, -1)
        seen.append(path(query, key, everything, mask, scale, bias, dropout))
        return path(query, key, value, mask, scale, bias, dropout)

    with use_path(ours, spy):
        ours(x, self_mask(Layout(lengths=SOURCE), causal=False), order(x))
    torch.testing.assert_close(seen[0], expected, atol=TOLERANCE, rtol=0)


@PATHS
@KINDS
def test_encoder_layer(path, norm_position, activation):
    theirs = nn.TransformerEncoderLayer(
        D_MODEL,
        HEADS,
        D_FF,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=norm_position == "pre",
    )
    ours = Block(config(norm_position=norm_position, activation=activation))
    shared = shared_block(theirs, ours)
    copy(theirs, ours, shared)
    x, y, real = inputs(SOURCE)
    expected = theirs(x, src_key_padding_mask=~real)
    with use_path(ours, path):
        found = ours(y, Mask(key_lengths=SOURCE), order(y))
    assert_same(expected, found, real, [(x, [y]), *shared])


@PATHS
@KINDS
def test_decoder_layer(path, norm_position, activation):
    theirs = nn.TransformerDecoderLayer(
        D_MODEL,
        HEADS,
        D_FF,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=norm_position == "pre",
    )
    ours = Block(config(norm_position=norm_position, activation=activation), cross=True)
    shared = shared_block(theirs, ours)
    copy(theirs, ours, shared)
    x, y, real = inputs(TARGET)
    memory, our_memory, visible = inputs(SOURCE)
    expected = theirs(
        x,
        memory,
        tgt_mask=causal(x.shape[1]),
        tgt_key_padding_mask=~real,
        memory_key_padding_mask=~visible,
    )
    with use_path(ours, path):
        found = ours(
            y,
            self_mask(Layout(lengths=TARGET), causal=True),
            order(y),
            memory=ours.cross_attention.remember(our_memory),
            memory_mask=Mask(key_lengths=SOURCE),
        )
    assert_same(expected, found, real, [(x, [y]), (memory, [our_memory]), *shared])
