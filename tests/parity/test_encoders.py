"""BERT, RoBERTa, ALBERT and DeBERTa-v2 against transformers on copied weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from qkv.model import equation, fast, use_path
from qkv.model.positions.disentangled import buckets
from tests.parity.encoders import (
    PAD,
    TOLERANCES,
    Pair,
    answers,
    assert_same_answers,
    assert_same_gradients,
    text_pair,
)

LENGTH = 40
PATHS = pytest.mark.parametrize("path", [fast, equation])
DTYPES = pytest.mark.parametrize("dtype", TOLERANCES)
WITH_PAIRS = ["none", "masked", "pairs", "sequence", "token", "answer"]
WITHOUT_PAIRS = ["none", "masked", "sequence", "token", "answer"]


def bert_pair(head: str = "none", seed: int = 0, segments: int = 2, **sizes: Any) -> Pair:
    theirs = {"type_vocab_size": segments}
    return text_pair("Bert", head, seed, theirs=theirs, n_segments=segments, **sizes)


def roberta_pair(head: str = "none", seed: int = 0, max_length: int = 40, **sizes: Any) -> Pair:
    """Its positions count from the padding's id on; its one segment's vector is 0 here."""
    theirs = {"type_vocab_size": 1, "max_position_embeddings": max_length + PAD + 1}
    pair = text_pair("Roberta", head, seed, theirs=theirs, max_length=max_length, **sizes)
    torch.nn.init.zeros_(pair[0].base_model.embeddings.token_type_embeddings.weight)
    return pair


def albert_pair(head: str = "none", seed: int = 0, d_embedding: int = 12, **sizes: Any) -> Pair:
    """One block for all layers, and narrow embeddings."""
    theirs = {"embedding_size": d_embedding}
    return text_pair("Albert", head, seed, theirs=theirs, d_embedding=d_embedding, **sizes)


def deberta_pair(
    head: str = "none",
    seed: int = 0,
    *,
    buckets: int = 8,
    farthest: int = 0,
    max_length: int = LENGTH,
    **sizes: Any,
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
    relative = {"relative_buckets": buckets, "relative_length": farthest}
    sizes = {"d_model": 24, "heads": 2, **sizes, **relative, "max_length": max_length}
    return text_pair("DebertaV2", head, seed, theirs=theirs, **sizes)


@dataclass(frozen=True)
class Architecture:
    """How pairs of one architecture are made, and on what they are compared."""

    pair: Callable[..., Pair]
    heads: Sequence[str]
    sized_head: str
    sizes: Sequence[dict[str, int]]
    any_heads: Sequence[str]
    gradient_heads: Sequence[str]
    deep: Callable[..., Pair]  # for any lengths and gradients
    longest: int = 12
    any_longest: int = 20


ONE_LAYER = {"heads": 1, "layers": 1, "d_ff": 20}
SHORT = {"d_model": 24, "heads": 6, "layers": 3, "vocab_size": 301, "max_length": 12}
ALL = {
    "bert": Architecture(
        bert_pair,
        WITH_PAIRS,
        "pairs",
        [ONE_LAYER, SHORT, {"d_model": 20, "heads": 2, "segments": 5}],
        ["none", "pairs"],
        ["none", "pairs", "sequence", "answer"],
        bert_pair,
    ),
    "roberta": Architecture(
        roberta_pair,
        WITHOUT_PAIRS,
        "masked",
        [ONE_LAYER, SHORT],
        ["none"],
        ["none", "masked", "sequence"],
        roberta_pair,
        any_longest=40,
    ),
    "albert": Architecture(  # gradients of the shared block are sums over its layers
        albert_pair,
        WITH_PAIRS,
        "pairs",
        [{**ONE_LAYER, "d_embedding": 8}, SHORT, {"d_embedding": 48}],  # wider than the stream
        ["none", "pairs"],
        ["none", "pairs", "sequence"],
        partial(albert_pair, layers=3),
    ),
    # Transformers takes √(3·D/H) in float32 whatever the weights are, which is exact where it is
    # whole: all heads here are 3, 12 or 27 wide.
    "deberta": Architecture(
        deberta_pair,
        WITHOUT_PAIRS,
        "masked",
        [
            {**ONE_LAYER, "d_model": 12},
            {"d_model": 12, "heads": 4, "layers": 3, "vocab_size": 301},
            {"d_model": 54, "heads": 2, "layers": 1, "buckets": 4},
            {"buckets": 6, "farthest": 24},  # farther ones share the last bucket
            {"buckets": 7, "farthest": 16},
            {"buckets": 8, "farthest": 200},
            {"buckets": 64},  # more than there are distances
            {"buckets": 2},
        ],
        ["none"],
        ["none", "masked", "sequence"],
        deberta_pair,
        longest=LENGTH,
        any_longest=LENGTH,
    ),
}


def cases(field: str) -> pytest.MarkDecorator:
    """Run a test for each architecture with each entry of one of its lists."""
    made = [(ALL[name], entry) for name in ALL for entry in getattr(ALL[name], field)]
    ids = [f"{name} {entry}" for name in ALL for entry in getattr(ALL[name], field)]
    return pytest.mark.parametrize(("architecture", "entry"), made, ids=ids)


@DTYPES
@PATHS
@cases("heads")
def test_heads_equal_transformers(architecture, entry, path, dtype):
    pair = architecture.pair(entry, seed=3)
    longest = architecture.longest
    for lengths in ([longest] * 3, [7, 1, min(longest, 30), 4]):
        assert_same_answers(pair, dtype, path, TOLERANCES[dtype], lengths)


@DTYPES
@cases("sizes")
def test_sizes_equal_transformers(architecture, entry, dtype):
    pair = architecture.pair(architecture.sized_head, seed=4, **entry)
    lengths = [9, architecture.longest, 3]
    assert_same_answers(pair, dtype, fast, TOLERANCES[dtype], lengths)


@cases("any_heads")
@settings(max_examples=15)
@given(data=st.data(), seed=st.integers(0, 1000), path=st.sampled_from([fast, equation]))
def test_any_lengths_equal_transformers(architecture, entry, data, seed, path):
    longest = st.integers(1, architecture.any_longest)
    lengths = data.draw(st.lists(longest, min_size=1, max_size=4))
    pair = deep_pair(architecture.deep, entry)
    assert_same_answers(pair, torch.float64, path, 1e-10, lengths, seed)


deep_pair = cache(lambda make, head: make(head))


@PATHS
@cases("gradient_heads")
def test_gradients_equal_transformers(architecture, entry, path):
    theirs, ours = (model.double() for model in architecture.deep(entry, seed=1))
    with use_path(ours, path):
        outputs = answers((theirs, ours), [5, 9 if architecture.longest < 25 else 25, 2])
    assert_same_gradients((theirs, ours), entry, outputs, 1e-10)


@torch.no_grad()
def test_the_vector_of_robertas_segment_may_be_a_part_of_our_positions():
    """A released model has one; where each token has the same, each position may hold it."""
    theirs, ours = roberta_pair("masked", seed=2)
    row = theirs.base_model.embeddings.token_type_embeddings.weight
    row.copy_(torch.randn(row.shape))
    ((mine, other),) = answers((theirs, ours), [7, 12]).values()
    assert (mine - other).abs().max() > 0.1
    ours.encoder.positions.table.weight += row
    assert_same_answers((theirs, ours), torch.float64, fast, 1e-6, [7, 12])


@settings(max_examples=200)
@given(st.integers(2, 300), st.integers(3, 5000))
def test_the_buckets_of_deberta_are_theirs(n_buckets, farthest):
    """To the last distance, where one more rounding would open one more bucket."""
    if farthest - 1 > n_buckets // 2:
        apart = torch.arange(-farthest - 9, farthest + 10)
        expected = make_log_bucket_position(apart, n_buckets, farthest).long()
        assert torch.equal(buckets(apart, n_buckets, farthest), expected)


@pytest.mark.parametrize("farthest", [20, 400])
@torch.no_grad()
def test_the_farthest_distance_of_deberta_matters(farthest):
    """Were it ignored, the tests above would see it."""
    (_, plain), (_, other) = deberta_pair(seed=5), deberta_pair(seed=5, farthest=farthest)
    tokens = torch.randint(2, 100, (2, LENGTH))
    assert (plain(tokens) - other(tokens)).abs().mean() > 0.02
