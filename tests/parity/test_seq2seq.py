"""T5 and BART against transformers on the same weights."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.models.t5.modeling_t5 import T5LayerNorm

from qkv.model import equation, fast, use_path
from tests.convert.harness import made, texts
from tests.convert.seq2seq import draw_bias
from tests.parity.pairs import Pair, assert_same_gradients, with_ours

TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-10}
PATHS = pytest.mark.parametrize("path", [fast, equation])


def both_logits(
    pair: Pair, lengths: list[int], n_target: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Teacher-forced logits of both on padded sources."""
    theirs, ours = pair
    source, seen, layout = texts(lengths, ours.config.vocab_size, seed)
    target, _, _ = texts([n_target] * len(lengths), ours.config.vocab_size, seed + 1)
    with _softmax_in_full():
        expected = theirs(input_ids=source, attention_mask=seen, decoder_input_ids=target).logits
    return ours(source, target, layout), expected


def _softmax_in_full() -> AbstractContextManager[object]:
    """Keep scores as exact as they are: T5 of earlier versions casts them to float32 first."""
    return patch.object(Tensor, "float", lambda scores: scores)


@torch.no_grad()
def assert_same_logits(pair: Pair, dtype, path, lengths: list[int], n_target: int, seed=0) -> None:
    theirs, ours = (model.to(dtype) for model in pair)
    with use_path(ours, path):
        mine, expected = both_logits((theirs, ours), lengths, n_target, seed)
    torch.testing.assert_close(mine, expected, atol=TOLERANCES[dtype], rtol=0)


SMALL_T5 = {
    "vocab_size": 40,
    "d_model": 24,
    "num_heads": 4,
    "d_kv": 6,
    "num_layers": 2,
    "d_ff": 32,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}
SMALL_BART = {
    "vocab_size": 40,
    "d_model": 24,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_position_embeddings": 24,
}
CASES = {
    "t5, original": ("t5", {}),
    "t5, version 1.1": ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5, wide heads": (
        "t5",
        {"d_kv": 11, "num_heads": 3, "num_decoder_layers": 3, "num_layers": 1},
    ),
    "t5, many buckets": (
        "t5",
        {"relative_attention_num_buckets": 33, "relative_attention_max_distance": 50},
    ),
    "bart, original": ("bart", {}),
    "bart, scaled": ("bart", {"scale_embedding": True, "activation_function": "relu"}),
    "bart, deeper decoder": ("bart", {"encoder_layers": 1, "decoder_layers": 3}),
    "bart, nothing tied": ("bart", {"tie_word_embeddings": False}),
}


def t5_pair(seed: int = 0, **sizes) -> Pair:
    theirs = made("T5ForConditionalGeneration", {**SMALL_T5, **sizes}, seed)
    if sizes.get("tie_word_embeddings") is False:
        draw = torch.Generator().manual_seed(seed)
        theirs.lm_head.weight = nn.Parameter(torch.randn(40, 24, generator=draw))
    pair = with_ours(theirs)
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


def bart_pair(seed: int = 0, **sizes) -> Pair:
    theirs = made("BartForConditionalGeneration", {**SMALL_BART, **sizes}, seed)
    draw_bias(theirs, seed)
    return with_ours(theirs)


PAIRS = {"t5": t5_pair, "bart": bart_pair}
LONGEST = {"t5": 30, "bart": 24}
ALL = pytest.mark.parametrize(("name", "sizes"), CASES.values(), ids=CASES)


@pytest.mark.parametrize("dtype", TOLERANCES)
@PATHS
@ALL
def test_logits_equal_transformers(name, sizes, path, dtype):
    n_tokens = LONGEST[name]
    pair = PAIRS[name](seed=3, **sizes)
    assert_same_logits(pair, dtype, path, [7, 1, n_tokens, 4], n_tokens)


plain_pair = cache(lambda name: PAIRS[name]())


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 24), min_size=1, max_size=4),
    n_target=st.integers(1, 24),
    seed=st.integers(0, 1000),
    path=st.sampled_from([fast, equation]),
)
def test_any_lengths_equal_transformers(name, lengths, n_target, seed, path):
    assert_same_logits(plain_pair(name), torch.float64, path, lengths, n_target, seed)


@PATHS
@ALL
def test_gradients_equal_transformers(name, sizes, path):
    pair = tuple(model.double() for model in PAIRS[name](seed=1, **sizes))
    with use_path(pair[1], path):
        outputs = both_logits(pair, [5, 9, 2], 7)
    assert_same_gradients(pair, [outputs], unused=("output.projection.bias",))  # no parameter there
