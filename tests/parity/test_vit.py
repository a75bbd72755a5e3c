"""ViT against transformers on the same weights: their kernels of patches are our matrices."""

from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.convert.architectures import ARCHITECTURES
from qkv.model import Layout, equation, fast, use_path
from tests.parity.pairs import EPSILON, Pair, assert_same_gradients, pair_of
from tests.parity.test_encoders import TOLERANCES

PATHS = pytest.mark.parametrize("path", [fast, equation])
DTYPES = pytest.mark.parametrize("dtype", TOLERANCES)
HEADS = pytest.mark.parametrize("head", ["none", "image"])
SIZES = [
    {"num_channels": 1},
    {"num_channels": 3},
    {
        "image_size": 12,
        "patch_size": 4,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "intermediate_size": 20,
    },
    {
        "num_channels": 1,
        "image_size": 5,
        "patch_size": 1,
        "hidden_size": 24,
        "num_attention_heads": 6,
        "num_hidden_layers": 3,
    },
    {"num_channels": 2, "image_size": 6, "patch_size": 6},
]
USUAL = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "layer_norm_eps": EPSILON,
    "num_labels": 3,
    "num_channels": 3,
    "image_size": 8,
    "patch_size": 2,
}


def vit_pair(head: str = "none", seed: int = 0, **sizes: Any) -> Pair:
    return pair_of(ARCHITECTURES["vit"].classes[head], {**USUAL, **sizes}, seed)


def answers(pair: Pair, pixels: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What both models say of images and their patches."""
    theirs, ours = pair
    other, mine = theirs(pixel_values=pixels), ours(pixels)
    if "logits" in other:
        return [(mine, other.logits)]
    pooled = ours.pooler(mine, Layout())
    return [(mine, other.last_hidden_state), (pooled, other.pooler_output)]


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
        outputs = answers((theirs, ours), images((theirs, ours)))
    for mine, other in outputs:
        torch.testing.assert_close(mine, other, atol=TOLERANCES[dtype], rtol=0)


@PATHS
@HEADS
def test_gradients_equal_transformers(head, path):
    theirs, ours = (model.double() for model in vit_pair(head, seed=1))
    with use_path(ours, path):
        outputs = answers((theirs, ours), images((theirs, ours)))
    assert_same_gradients((theirs, ours), outputs)
