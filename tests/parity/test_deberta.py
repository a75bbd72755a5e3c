"""DeBERTa-v2 against transformers on copied weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from qkv.model.positions.disentangled import buckets
from tests.parity import checks
from tests.parity.encoders import Pair, text_pair

HEADS = ["none", "masked", "sequence", "token", "answer"]
LENGTH = 40
# Transformers takes √(3·D/H) in float32 whatever the weights are, which is exact where it is whole:
# all heads here are 3, 12 or 27 wide.
SIZES = [
    {"d_model": 12, "heads": 1, "layers": 1, "d_ff": 20},
    {"d_model": 12, "heads": 4, "layers": 3, "vocab_size": 301},
    {"d_model": 54, "heads": 2, "layers": 1, "buckets": 4},
    {"buckets": 6, "farthest": 24},  # farther ones share the last bucket
    {"buckets": 7, "farthest": 16},
    {"buckets": 8, "farthest": 200},
    {"buckets": 64},  # some are told apart that never meet
    {"buckets": 2},
]


def deberta_pair(
    head: str = "none",
    seed: int = 0,
    *,
    buckets: int = 8,
    farthest: int = 0,
    max_length: int = LENGTH,
    **sizes,
) -> Pair:
    """As the third version is released, with few enough buckets that far distances share them."""
    theirs = {
        "relative_attention": True,
        "pos_att_type": "c2p|p2c",
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
        "position_buckets": buckets,
        "max_relative_positions": farthest or -1,
    }
    return text_pair(
        "DebertaV2",
        head,
        seed,
        theirs=theirs,
        max_length=max_length,
        relative_buckets=buckets,
        relative_length=farthest,
        **{"d_model": 24, "heads": 2, **sizes},
    )


test_heads_equal_transformers = checks.heads_are_equal(
    deberta_pair, HEADS, [LENGTH, LENGTH], [7, 1, 30, 4]
)
test_sizes_equal_transformers = checks.sizes_are_equal(
    deberta_pair, "masked", SIZES, [LENGTH, 12, 33]
)
test_any_lengths_equal_transformers = checks.any_lengths_are_equal(deberta_pair, ["none"], LENGTH)
# All layers' projections teach the one table of distances.
test_gradients_equal_transformers = checks.gradients_are_equal(
    deberta_pair, ["none", "masked", "sequence"], [5, 25, 2]
)


@settings(max_examples=200)
@given(st.integers(2, 300), st.integers(3, 5000))
def test_buckets_are_theirs(n_buckets, farthest):
    """To the last distance, where one more rounding would open one more bucket."""
    if farthest - 1 > n_buckets // 2:
        apart = torch.arange(-farthest - 9, farthest + 10)
        expected = make_log_bucket_position(apart, n_buckets, farthest).long()
        assert torch.equal(buckets(apart, n_buckets, farthest), expected)


@pytest.mark.parametrize(
    "changed", [{"buckets": 8, "farthest": 20}, {"buckets": 8, "farthest": 400}], ids=str
)
@torch.no_grad()
def test_the_farthest_distance_matters(changed):
    """Were it ignored, the tests above would see it."""
    (_, plain), (_, other) = deberta_pair(seed=5), deberta_pair(seed=5, **changed)
    tokens = torch.randint(2, 100, (2, LENGTH))
    assert (plain(tokens) - other(tokens)).abs().mean() > 0.02
