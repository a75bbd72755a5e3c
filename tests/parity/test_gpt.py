"""GPT, GPT-2 and GPT-3's layers against transformers on the same weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import preset
from qkv.model import equation, fast, use_path
from tests.parity.pairs import (
    GPT,
    Pair,
    assert_same_gradients,
    both_logits,
    gpt2_pair,
    gpt3_pair,
    pair_of,
    prompts,
)

PAIRS = {
    "gpt": lambda seed=0, **sizes: pair_of("OpenAIGPTLMHeadModel", {**GPT, **sizes}, seed),
    "gpt2": gpt2_pair,
    "gpt3": gpt3_pair,
}
PATHS = pytest.mark.parametrize("path", [fast, equation])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
NARROW = {"n_embd": 24, "n_head": 6, "n_layer": 3, "vocab_size": 301, "n_positions": 12}
ALTERNATE = ["global", "local"]
SIZES = [
    ("gpt", {}),
    ("gpt", {"n_head": 1, "n_layer": 1}),
    ("gpt", NARROW),
    ("gpt2", {}),
    ("gpt2", {"n_head": 1, "n_layer": 1, "n_inner": 20}),
    ("gpt2", NARROW),
    ("gpt3", {}),
    (
        "gpt3",
        {"window_size": 1, "num_layers": 2, "attention_types": [[ALTERNATE, 1]], "num_heads": 8},
    ),
    (
        "gpt3",
        {"window_size": 5, "hidden_size": 24, "num_heads": 2, "max_position_embeddings": 12},
    ),
]


def tolerance(name: str, dtype: torch.dtype) -> float:
    """Of logits of size 10. In float64 nothing hides behind rounding, save GPT-Neo's own.

    It computes its scores in float32, whatever the weights are.
    """
    if dtype == torch.float32:
        return 1e-4
    return 1e-5 if name == "gpt3" else 1e-10


def assert_same_logits(pair: Pair, dtype, path, atol: float, *case) -> None:
    theirs, ours = (model.to(dtype) for model in pair)
    with use_path(ours, path), torch.no_grad():
        torch.testing.assert_close(*both_logits((theirs, ours), *case), atol=atol, rtol=0)


@DTYPES
@PATHS
@pytest.mark.parametrize(("name", "sizes"), SIZES, ids=str)
def test_logits_equal_transformers(name, sizes, dtype, path):
    pair = PAIRS[name](seed=3, **sizes)
    assert_same_logits(pair, dtype, path, tolerance(name, dtype), [12, 12, 12])


@DTYPES
@PATHS
@pytest.mark.parametrize("name", PAIRS)
def test_padded_prompts_equal_transformers(name, dtype, path):
    atol = tolerance(name, dtype)
    assert_same_logits(PAIRS[name](seed=4), dtype, path, atol, [7, 1, 12, 4])


@pytest.fixture(scope="module", params=PAIRS)
def named_pair(request):
    return request.param, PAIRS[request.param]()


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    path=st.sampled_from([fast, equation]),
)
def test_logits_equal_transformers_at_any_lengths(named_pair, lengths, seed, path):
    name, pair = named_pair
    atol = tolerance(name, torch.float64)
    assert_same_logits(pair, torch.float64, path, atol, lengths, seed)


@PATHS
@torch.no_grad()
def test_padded_prompts_equal_each_prompt_alone(named_pair, path):
    ours = named_pair[1][1].double()
    lengths = [7, 1, 12, 4]
    tokens, first = prompts(lengths)
    with use_path(ours, path):
        together, _ = both_logits((named_pair[1][0].double(), ours), lengths)
        rows = [row[begin:] for row, begin in zip(tokens, first.flatten(), strict=True)]
        alone = torch.cat([ours(row[None])[0] for row in rows])
    torch.testing.assert_close(together, alone, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["gpt", "gpt2"])
def test_gradients_equal_transformers(name):
    """And every weight has one that matters."""
    pair = tuple(model.double() for model in PAIRS[name](seed=1))
    assert_same_gradients(pair, [both_logits(pair, [5, 9, 2])])


@pytest.mark.parametrize(
    ("name", "ours"), [("gpt", "gpt"), ("gpt2", "gpt2"), ("gpt3", "gpt3-small")]
)
def test_the_presets_are_these_models(name, ours):
    """But GPT-Neo's, which has no bias under queries, keys and values, and does not divide."""
    found, wanted = PAIRS[name]()[1].config, preset(ours)
    names = ("norm_position", "positions", "activation", "tie", "bias", "window_layers", "gated")
    assert [getattr(found, name) for name in names] == [getattr(wanted, name) for name in names]
