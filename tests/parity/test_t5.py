"""T5 and its version 1.1 against transformers' on the same weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.models.t5.modeling_t5 import T5LayerNorm

from qkv.convert.t5 import T5
from qkv.model import equation, fast
from tests.convert.harness import made
from tests.parity.seq2seq import (
    TOLERANCES,
    Pair,
    assert_same_gradients,
    assert_same_logits,
    pair_of,
)

PATHS = pytest.mark.parametrize("path", [fast, equation])
SMALL = {
    "vocab_size": 40, "d_model": 24, "num_heads": 4, "d_kv": 6, "num_layers": 2, "d_ff": 32,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
}  # fmt: skip
SIZES = {
    "original": {},
    "version 1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "wide heads": {"d_kv": 11, "num_heads": 3, "num_decoder_layers": 3, "num_layers": 1},
    "many buckets": {"relative_attention_num_buckets": 33, "relative_attention_max_distance": 50},
}


def t5_pair(seed: int = 0, **sizes) -> Pair:
    theirs = made("T5ForConditionalGeneration", {**SMALL, **sizes}, seed)
    if sizes.get("tie_word_embeddings") is False:
        draw = torch.Generator().manual_seed(seed)
        theirs.lm_head.weight = nn.Parameter(torch.randn(40, 24, generator=draw))
    pair = pair_of(theirs)
    _norms_in_full(theirs)
    return pair


def _norms_in_full(theirs: nn.Module) -> None:
    """Theirs take the mean of squares in float32 whatever the rest is in."""
    for module in list(theirs.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, T5LayerNorm):
                norm = nn.RMSNorm(len(child.weight), eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(module, name, norm)


@pytest.mark.parametrize("dtype", TOLERANCES)
@PATHS
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_logits(sizes, path, dtype):
    assert_same_logits(t5_pair(seed=3, **sizes), dtype, path, [7, 1, 30, 4], 25)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return t5_pair()


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    n_target=st.integers(1, 40),
    seed=st.integers(0, 1000),
    path=st.sampled_from([fast, equation]),
)
def test_logits_at_any_lengths(pair, lengths, n_target, seed, path):
    assert_same_logits(pair, torch.float64, path, lengths, n_target, seed)


@PATHS
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_gradients(sizes, path):
    pair = t5_pair(seed=1, **sizes)
    assert_same_gradients(pair, T5.rules(pair[1].config, "seq2seq"), path)
