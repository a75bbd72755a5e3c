"""The convolution beside the first block: DeBERTa-v2's own, its gradients, and padding."""

import pytest
import torch
from torch import Tensor
from transformers import DebertaV2Config
from transformers.models.deberta_v2.modeling_deberta_v2 import ConvLayer

from qkv.errors import UserError
from qkv.model import Layout
from qkv.model.convolution import Neighbours
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

SIZES = pytest.mark.parametrize("size", [1, 3, 5])
CHOICES = {"family": "encoder", "positions": "disentangled", "relative_buckets": 8}


def pair(size: int) -> tuple[Neighbours, ConvLayer]:
    """Ours and theirs in float64, with the same weights."""
    torch.manual_seed(size)
    config = tiny_config(family="encoder", convolution=size, norm_epsilon=1e-2)
    ours = Neighbours(config).double().eval()
    theirs = ConvLayer(
        DebertaV2Config(
            hidden_size=config.d_model, conv_kernel_size=size, conv_act="gelu", layer_norm_eps=1e-2
        )
    )
    theirs = theirs.double().eval()
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.copy_(torch.randn_like(mine))
            other.copy_(mine)
    return ours, theirs


def stream(*shape: int) -> Tensor:
    return torch.randn(*shape, 16, dtype=torch.float64, requires_grad=True)


@SIZES
@pytest.mark.parametrize("lengths", [[9, 9], [9, 4, 1]], ids=str)
def test_it_is_theirs_and_so_are_its_gradients(size, lengths):
    ours, theirs = pair(size)
    x, output = stream(len(lengths), 9), stream(len(lengths), 9)
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    layout = Layout() if mask.all() else Layout(lengths=torch.tensor(lengths))
    mine = ours(x, output, layout)[mask]
    # Theirs has zeros in place of padding before it comes here.
    other = theirs(x * mask[:, :, None], output, mask.long())[mask]
    assert_same(mine, other)
    direction = torch.randn_like(mine)
    found = torch.autograd.grad((mine * direction).sum(), [x, output, *ours.parameters()])
    expected = torch.autograd.grad((other * direction).sum(), [x, output, *theirs.parameters()])
    for gradient, their_gradient in zip(found, expected, strict=True):
        assert gradient.abs().max() > 1e-3
        torch.testing.assert_close(gradient, their_gradient, atol=1e-10, rtol=0)


@torch.no_grad()
def test_padding_is_as_if_nothing_stood_there():
    model = tiny_model(**CHOICES, convolution=3)
    rows = sequences([7, 2, 11, 1])
    alone = torch.cat([model.hidden(row[None])[0] for row in rows])
    table, layout = padded(rows, extra=3)
    assert_same(real(model.hidden(table, layout), layout), alone)


@torch.no_grad()
@pytest.mark.parametrize("shared", [False, True])
def test_it_stands_beside_the_first_layer_alone(shared):
    model = tiny_model(**CHOICES, convolution=3, n_encoder_layers=3, shared_layers=shared)
    calls = []
    model.encoder.neighbours.register_forward_hook(lambda _, given, out: calls.append(given[0]))
    row = tokens(1, 6)
    model.hidden(row)
    (given,) = calls
    assert_same(given, model.encoder.input_norm(model.embedding(row)))


@torch.no_grad()
def test_a_token_sees_its_neighbours_as_far_as_the_kernel_goes():
    ours, _ = pair(5)
    x, output = stream(1, 9), stream(1, 9)
    other = x.clone()
    other[0, 4] += 1
    changed = (ours(x, output, Layout()) != ours(other, output, Layout())).any(-1)[0]
    assert changed.tolist() == [2 <= place <= 6 for place in range(9)]


def test_packed_sequences_are_refused():
    model = tiny_model(**CHOICES, convolution=3)
    assert not model.config.can_pack
    with pytest.raises(ValueError, match="packed"):
        model.encoder.neighbours(stream(1, 5), stream(1, 5), packed(sequences([2, 3]))[1])


@pytest.mark.parametrize(
    "choices", [{"convolution": 4}, {"convolution": 3, "norm_position": "pre"}]
)
def test_what_a_convolution_needs(choices):
    with pytest.raises(UserError, match="odd number, and 'post'"):
        tiny_config(family="encoder", **choices)


def test_first_weights_are_drawn_as_the_others_are():
    torch.manual_seed(0)
    config = {**CHOICES, "convolution": 3, "d_model": 64, "init": "normal"}
    weight = tiny_model(**config).encoder.neighbours.convolution.weight
    assert abs(weight.std().item() - 0.02) < 0.002
