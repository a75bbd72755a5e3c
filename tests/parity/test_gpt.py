"""GPT, GPT-2 and GPT-3's layers against transformers on copied weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.model import equation, fast, use_path
from tests.parity.gpt import (
    Pair,
    both_logits,
    gpt2_pair,
    gpt3_pair,
    gpt_pair,
    laid,
    prompts,
    same_places,
)

PAIRS = {"gpt": gpt_pair, "gpt2": gpt2_pair, "gpt3": gpt3_pair}
PATHS = pytest.mark.parametrize("path", [fast, equation])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
SIZES = [
    ("gpt", {}),
    ("gpt", {"heads": 1, "layers": 1}),
    ("gpt", {"d_model": 24, "heads": 6, "layers": 3, "vocab_size": 301, "max_length": 12}),
    ("gpt2", {}),
    ("gpt2", {"heads": 1, "layers": 1, "d_ff": 20}),
    ("gpt2", {"d_model": 24, "heads": 6, "layers": 3, "vocab_size": 301, "max_length": 12}),
    ("gpt3", {}),
    ("gpt3", {"window": 1, "layers": 2, "heads": 8}),
    ("gpt3", {"window": 5, "d_model": 24, "heads": 2, "max_length": 12}),
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
    theirs, ours = (model.double() for model in PAIRS[name](seed=1))
    mine, other = both_logits((theirs, ours), [5, 9, 2])
    cotangent = torch.randn(mine.shape, dtype=torch.float64)
    (mine * cotangent).mean().backward()
    (other * cotangent).mean().backward()
    for module, parts in same_places(theirs, ours):
        for kind, parameter in module.named_parameters():
            expected = laid(parts, kind, gradient=True)
            assert expected.abs().max() > 1e-3
            torch.testing.assert_close(parameter.grad, expected, atol=1e-10, rtol=0)
