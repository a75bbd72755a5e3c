"""ViT against transformers on copied weights: their kernels of patches are our matrices."""

import pytest
import torch

from qkv.model import equation, fast, use_path
from tests.parity.encoders import (
    TOLERANCES,
    Pair,
    assert_same_gradients,
    encoder_pair,
    image_answers,
)

PATHS = pytest.mark.parametrize("path", [fast, equation])
DTYPES = pytest.mark.parametrize("dtype", TOLERANCES)
HEADS = pytest.mark.parametrize("head", ["none", "image"])
SIZES = [
    {"channels": 1},
    {"channels": 3},
    {"channels": 3, "image_size": 12, "patch_size": 4, "heads": 1, "layers": 1, "d_ff": 20},
    {"channels": 1, "image_size": 5, "patch_size": 1, "d_model": 24, "heads": 6, "layers": 3},
    {"channels": 2, "image_size": 6, "patch_size": 6},
]


def vit_pair(
    head: str = "none",
    seed: int = 0,
    *,
    channels: int = 3,
    image_size: int = 8,
    patch_size: int = 2,
    **sizes,
) -> Pair:
    both = {"image_size": image_size, "patch_size": patch_size}
    theirs = {**both, "num_channels": channels}
    return encoder_pair("ViT", head, seed, theirs=theirs, n_channels=channels, **both, **sizes)


def images(pair: Pair, count: int = 3) -> torch.Tensor:
    config = pair[1].config
    size = (count, config.n_channels, config.image_size, config.image_size)
    return torch.randn(size, dtype=next(pair[1].parameters()).dtype)


@DTYPES
@PATHS
@HEADS
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@torch.no_grad()
def test_outputs_equal_transformers(sizes, head, path, dtype):
    theirs, ours = (model.to(dtype) for model in vit_pair(head, seed=3, **sizes))
    with use_path(ours, path):
        outputs = image_answers((theirs, ours), images((theirs, ours)))
    for mine, other in outputs.values():
        torch.testing.assert_close(mine, other, atol=TOLERANCES[dtype], rtol=0)


@PATHS
@HEADS
def test_gradients_equal_transformers(head, path):
    theirs, ours = (model.double() for model in vit_pair(head, seed=1))
    with use_path(ours, path):
        outputs = image_answers((theirs, ours), images((theirs, ours)))
    assert_same_gradients((theirs, ours), head, outputs, 1e-10)
