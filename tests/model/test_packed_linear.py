"""Packed matrices beside the plain ones that they are copies of."""

import copy

import pytest
import torch
from torch import nn

from qkv.config import preset
from qkv.model import EncoderDecoder
from qkv.model.packed_linear import PackedLinear, pack_products

SIZES = {"vocab_size": 60, "d_model": 32, "n_heads": 2, "d_ff": 64, "max_length": 16}


@pytest.fixture
def pair() -> tuple[EncoderDecoder, EncoderDecoder]:
    torch.manual_seed(0)
    config = preset("transformer-base", **SIZES, n_encoder_layers=1, n_decoder_layers=1)
    plain = EncoderDecoder(config).eval()
    packed = pack_products(copy.deepcopy(plain))
    if not any(isinstance(module, PackedLinear) for module in packed.modules()):
        pytest.skip("this CPU has no kernel for packed matrices")
    return plain, packed


def logits(model: EncoderDecoder) -> torch.Tensor:
    tokens = torch.arange(14).view(2, 7)
    return model(tokens, tokens + 20)


def test_products_are_the_same_up_to_rounding(pair):
    plain, packed = pair
    with torch.inference_mode():
        torch.testing.assert_close(logits(packed), logits(plain))
        for shape in [(32,), (0, 32), (3, 32), (2, 3, 4, 32)]:
            x = torch.randn(shape)
            layers = (model.decoder.blocks[0].feed_forward.inner for model in pair)
            torch.testing.assert_close(*(layer(x) for layer in layers))


def test_weights_keep_their_names_and_their_ties(pair):
    plain, packed = pair
    assert list(packed.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in packed.named_parameters()] == [
        x for x, _ in plain.named_parameters()
    ]
    assert packed.output.projection.weight is packed.target_embedding.table.weight


def test_a_weight_that_changes_is_multiplied_as_it_is_now(pair):
    plain, packed = pair
    for model in pair:
        with torch.no_grad():
            model.decoder.blocks[0].feed_forward.inner.weight.mul_(3.0)
        outer = model.decoder.blocks[0].feed_forward.outer
        outer.weight.data = outer.weight.data * 2.0
    with torch.inference_mode():
        torch.testing.assert_close(logits(packed), logits(plain))


def test_gradients_and_other_precisions_take_the_plain_matrix(pair):
    plain, packed = pair
    for model in pair:
        logits(model).square().mean().backward()
    for ours, theirs in zip(packed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    with torch.inference_mode():
        torch.testing.assert_close(logits(packed.double()), logits(plain.double()))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert isinstance(packed.output.projection, nn.Linear)
            assert logits(copy.deepcopy(packed).float()).dtype == torch.bfloat16
