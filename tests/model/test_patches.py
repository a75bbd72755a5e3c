"""Images as sequences of patches."""

import pytest
import torch
import torch.nn.functional as F

from qkv.config import preset
from qkv.model import Encoder, Patches, equation, fast, use_path
from tests.model.tiny import assert_same, tiny_config, tiny_model

SIZES = [(1, 8, 2), (3, 8, 4), (3, 6, 6), (2, 5, 1)]
VIT = {"family": "encoder", "positions": "learned", "norm_position": "pre"}


def patches(channels: int, image_size: int, patch_size: int) -> Patches:
    size = {"n_channels": channels, "image_size": image_size, "patch_size": patch_size}
    layer = Patches(tiny_config(**VIT, **size)).double()
    torch.nn.init.normal_(layer.first)
    return layer


@pytest.mark.parametrize(("channels", "image_size", "patch_size"), SIZES)
def test_patches_are_a_convolution_that_strides_by_its_own_size(channels, image_size, patch_size):
    layer = patches(channels, image_size, patch_size)
    pixels = torch.randn(2, channels, image_size, image_size, dtype=torch.float64)
    kernel = layer.projection.weight.unflatten(1, (channels, patch_size, patch_size))
    expected = F.conv2d(pixels, kernel, layer.projection.bias, stride=patch_size)
    found = layer(pixels)
    assert found.shape == (2, 1 + (image_size // patch_size) ** 2, 16)
    assert_same(found[:, 1:], expected.flatten(2).transpose(1, 2))
    assert_same(found[:, 0], layer.first.expand(2, 16))


def test_patches_stand_in_the_order_of_reading():
    """Each pixel alone reaches the patch that it lies in, row by row."""
    layer = patches(1, 6, 2)
    nothing = torch.zeros(1, 1, 6, 6, dtype=torch.float64)
    for row, column in [(0, 0), (1, 3), (2, 5), (3, 2), (5, 5)]:
        pixels = nothing.clone()
        pixels[0, 0, row, column] = 1
        changed = (layer(pixels) - layer(nothing)).abs().amax(dim=(0, 2)).nonzero().flatten()
        assert changed.tolist() == [1 + 3 * (row // 2) + column // 2]


def test_images_need_not_be_square_nor_of_one_size():
    assert patches(1, 8, 2)(torch.randn(2, 1, 4, 6, dtype=torch.float64)).shape == (2, 7, 16)


@pytest.mark.parametrize("head", ["none", "sequence", "token"])
@torch.no_grad()
def test_an_encoder_of_images(head):
    model = tiny_model(
        **VIT, image_size=8, patch_size=2, n_channels=3, n_labels=5, head=head, pooling="mean"
    )
    assert isinstance(model, Encoder) and model.config.n_positions == 17
    pixels = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    shape = {"none": (2, 17, 16), "sequence": (2, 5), "token": (2, 17, 5)}[head]
    with use_path(model, equation):
        expected = model(pixels)
    assert expected.shape == shape
    with use_path(model, fast):
        assert_same(model(pixels), expected)
    assert_same(model(pixels.flip(0)).flip(0), expected)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "disentangled"])
@torch.no_grad()
def test_an_image_may_have_more_patches_than_a_text_has_tokens(positions):
    image = {"image_size": 8, "patch_size": 2, "max_length": 4}
    model = tiny_model(**{**VIT, "positions": positions}, **image)
    found = model(torch.randn(2, 1, 8, 8, dtype=torch.float64))
    assert found.shape == (2, 17, 16) and found.isfinite().all()


def test_every_part_of_a_vision_model_learns():
    config = preset("vit-tiny", head="sequence", n_labels=4, n_encoder_layers=1, dropout=0.0)
    model = Encoder(config)
    F.cross_entropy(model(torch.randn(3, 1, 8, 8)), torch.tensor([0, 1, 3])).backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


@torch.no_grad()
def test_patches_in_half_precision():
    model = tiny_model(**VIT, image_size=4, patch_size=2).bfloat16()
    found = model(torch.randn(2, 1, 4, 4).bfloat16())
    assert found.dtype == torch.bfloat16 and found.isfinite().all()
