"""BERT, RoBERTa, ALBERT and DeBERTa-v2 against transformers on the same weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from qkv.convert.architectures import ARCHITECTURES
from qkv.model import equation, fast, use_path
from qkv.model.positions.disentangled import buckets
from tests.convert.encoders import said
from tests.parity.pairs import EPSILON, Pair, assert_same_gradients, pair_of

PAD, LENGTH = 1, 40
# Of outputs of size 10; in float64 nothing hides behind rounding.
TOLERANCES = {torch.float32: 5e-5, torch.float64: 1e-11}
PATHS = pytest.mark.parametrize("path", [fast, equation])
DTYPES = pytest.mark.parametrize("dtype", TOLERANCES)
WITH_PAIRS = ["none", "masked", "pairs", "sequence", "token", "answer"]
WITHOUT_PAIRS = ["none", "masked", "sequence", "token", "answer"]
SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "max_position_embeddings": LENGTH,
    "layer_norm_eps": EPSILON,
    "pad_token_id": PAD,
}


def encoder_pair(model_type: str, head: str = "none", seed: int = 0, **config: Any) -> Pair:
    """A pair of an architecture with a head."""
    labels = {"num_labels": 2 if head in ("pairs", "answer") else 3}
    class_name = ARCHITECTURES[model_type].classes[head]
    return pair_of(class_name, {**SIZES, **labels, **config}, seed)


bert_pair = partial(encoder_pair, "bert")
# Its positions count from the padding's id on.
roberta_pair = partial(
    encoder_pair, "roberta", type_vocab_size=1, max_position_embeddings=LENGTH + PAD + 1
)
albert_pair = partial(encoder_pair, "albert", embedding_size=12)
# As the third version is released, with few enough buckets that far distances share them
deberta_pair = partial(
    encoder_pair,
    "deberta-v2",
    hidden_size=24,
    num_attention_heads=2,
    relative_attention=True,
    pos_att_type="c2p|p2c",
    share_att_key=True,
    norm_rel_ebd="layer_norm",
    position_biased_input=False,
    type_vocab_size=0,
    position_buckets=8,
)


def assert_same_answers(
    pair: Pair, head: str, dtype: torch.dtype, path: Any, atol: float, lengths: list[int], seed=0
) -> None:
    """Compare everything that both say, on one path and in one precision."""
    theirs, ours = (model.to(dtype) for model in pair)
    with use_path(ours, path), torch.no_grad():
        for mine, other in said(head, ours, theirs, lengths, seed):
            torch.testing.assert_close(mine, other, atol=atol, rtol=0)


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


ONE_LAYER = {"num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 20}
NARROW = {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "vocab_size": 301,
}
SHORT = {**NARROW, "max_position_embeddings": 12}
ALL = {
    "bert": Architecture(
        bert_pair,
        WITH_PAIRS,
        "pairs",
        [ONE_LAYER, SHORT, {"hidden_size": 20, "num_attention_heads": 2, "type_vocab_size": 5}],
        ["none", "pairs"],
        ["none", "pairs", "sequence", "answer"],
        bert_pair,
    ),
    "roberta": Architecture(
        roberta_pair,
        WITHOUT_PAIRS,
        "masked",
        [ONE_LAYER, {**NARROW, "max_position_embeddings": 12 + PAD + 1}],
        ["none"],
        ["none", "masked", "sequence"],
        roberta_pair,
        any_longest=40,
    ),
    "albert": Architecture(  # gradients of the shared block are sums over its layers
        albert_pair,
        WITH_PAIRS,
        "pairs",
        [
            {**ONE_LAYER, "embedding_size": 8},
            SHORT,
            {"embedding_size": 48},
        ],  # wider than the stream
        ["none", "pairs"],
        ["none", "pairs", "sequence"],
        partial(albert_pair, num_hidden_layers=3),
    ),
    # Transformers takes √(3·D/H) in float32 whatever the weights are, which is exact where it is
    # whole: all heads here are 3, 12 or 27 wide.
    "deberta": Architecture(
        deberta_pair,
        WITHOUT_PAIRS,
        "masked",
        [
            {**ONE_LAYER, "hidden_size": 12},
            {
                "hidden_size": 12,
                "num_attention_heads": 4,
                "num_hidden_layers": 3,
                "vocab_size": 301,
            },
            {"hidden_size": 54, "num_hidden_layers": 1, "position_buckets": 4},
            # Farther ones share the last bucket.
            {"position_buckets": 6, "max_relative_positions": 24},
            {"position_buckets": 7, "max_relative_positions": 16},
            {"position_buckets": 8, "max_relative_positions": 200},
            {"position_buckets": 64},  # more than there are distances
            {"position_buckets": 2},
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
        assert_same_answers(pair, entry, dtype, path, TOLERANCES[dtype], lengths)


@DTYPES
@cases("sizes")
def test_sizes_equal_transformers(architecture, entry, dtype):
    head = architecture.sized_head
    pair = architecture.pair(head, seed=4, **entry)
    lengths = [9, architecture.longest, 3]
    assert_same_answers(pair, head, dtype, fast, TOLERANCES[dtype], lengths)


@cases("any_heads")
@settings(max_examples=15)
@given(data=st.data(), seed=st.integers(0, 1000), path=st.sampled_from([fast, equation]))
def test_any_lengths_equal_transformers(architecture, entry, data, seed, path):
    longest = st.integers(1, architecture.any_longest)
    lengths = data.draw(st.lists(longest, min_size=1, max_size=4))
    pair = deep_pair(architecture.deep, entry)
    assert_same_answers(pair, entry, torch.float64, path, 1e-10, lengths, seed)


deep_pair = cache(lambda make, head: make(head))


@PATHS
@cases("gradient_heads")
def test_gradients_equal_transformers(architecture, entry, path):
    theirs, ours = (model.double() for model in architecture.deep(entry, seed=1))
    with use_path(ours, path):
        outputs = said(entry, ours, theirs, [5, 9 if architecture.longest < 25 else 25, 2], 0)
    assert_same_gradients((theirs, ours), outputs)


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
    (_, plain), (_, other) = (
        deberta_pair(seed=5),
        deberta_pair(seed=5, max_relative_positions=farthest),
    )
    tokens = torch.randint(2, 100, (2, LENGTH))
    assert (plain(tokens) - other(tokens)).abs().mean() > 0.02
