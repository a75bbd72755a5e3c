"""BART against transformers' on the same weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.convert.bart import BART
from qkv.model import equation, fast
from tests.convert.harness import made
from tests.convert.seq2seq import draw_bias
from tests.parity.seq2seq import (
    TOLERANCES,
    Pair,
    assert_same_gradients,
    assert_same_logits,
    pair_of,
)

PATHS = pytest.mark.parametrize("path", [fast, equation])
SMALL = {
    "vocab_size": 40, "d_model": 24, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "encoder_layers": 2, "decoder_layers": 2,
    "max_position_embeddings": 24,
}  # fmt: skip
SIZES = {
    "original": {},
    "scaled": {"scale_embedding": True, "activation_function": "relu"},
    "deeper decoder": {"encoder_layers": 1, "decoder_layers": 3},
    "nothing tied": {"tie_word_embeddings": False},
}


def bart_pair(seed: int = 0, **sizes) -> Pair:
    theirs = made("BartForConditionalGeneration", {**SMALL, **sizes}, seed)
    draw_bias(theirs, seed)
    return pair_of(theirs)


@pytest.mark.parametrize("dtype", TOLERANCES)
@PATHS
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_logits(sizes, path, dtype):
    assert_same_logits(bart_pair(seed=3, **sizes), dtype, path, [7, 1, 24, 4], 24)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return bart_pair()


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 24), min_size=1, max_size=4),
    n_target=st.integers(1, 24),
    seed=st.integers(0, 1000),
    path=st.sampled_from([fast, equation]),
)
def test_logits_at_any_lengths(pair, lengths, n_target, seed, path):
    assert_same_logits(pair, torch.float64, path, lengths, n_target, seed)


@PATHS
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_gradients(sizes, path):
    pair = bart_pair(seed=1, **sizes)
    assert_same_gradients(pair, BART.rules(pair[1].config, "seq2seq"), path)
