"""Llama and Mistral against transformers on the same weights."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.model import Decoder, equation, fast, use_path
from tests.parity.pairs import Pair, assert_same_gradients, both_logits, llama_pair, prompts

# Of logits of size 10. Transformers computes angles and norms in float32 whatever the weights are,
# so that float64 is little closer to it.
TOLERANCE = 1e-4
PATHS = pytest.mark.parametrize("path", [fast, equation])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
LENGTH = 40
TRAINED = {"original_max_position_embeddings": 256}
YARN = {"rope_type": "yarn", **TRAINED}
LLAMA3 = {"rope_type": "llama3", **TRAINED}
SCALINGS = {
    "linear": {"rope": {"rope_type": "linear", "factor": 3.0}},
    "yarn": {"rope": {**YARN, "factor": 4.0}},
    "yarn, other ramp": {"rope": {**YARN, "factor": 8.0, "beta_fast": 8.0, "beta_slow": 2.0}},
    "llama3": {"rope": {**LLAMA3, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    "llama3, other ramp": {
        "rope": {**LLAMA3, "factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 16.0}
    },
}
SIZES = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True},
    "a head for each": {"num_key_value_heads": 4},
    "one head for all": {"num_key_value_heads": 1, "num_hidden_layers": 1},
    "narrow": {
        "hidden_size": 24,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "intermediate_size": 20,
        "num_hidden_layers": 3,
    },
    "slow": {"base": 500_000.0, "vocab_size": 301, "max_position_embeddings": LENGTH},
    "window": {"sliding_window": 3},
    "window of one": {"sliding_window": 1, "num_key_value_heads": 4},
    "wide window": {"sliding_window": 12, "num_key_value_heads": 1, "tie_word_embeddings": True},
}
CASES = {**SIZES, **SCALINGS}
ALL = pytest.mark.parametrize("name", CASES)


def assert_same_logits(pair: Pair, dtype, path, *case) -> None:
    theirs, ours = (model.to(dtype) for model in pair)
    with use_path(ours, path), torch.no_grad():
        mine, other = both_logits((theirs, ours), *case)
    torch.testing.assert_close(mine, other, atol=TOLERANCE, rtol=0)


@DTYPES
@PATHS
@ALL
def test_logits_equal_transformers(name, dtype, path):
    assert_same_logits(llama_pair(seed=3, **CASES[name]), dtype, path, [LENGTH, LENGTH])


@PATHS
@ALL
def test_padded_prompts_equal_transformers(name, path):
    pair = llama_pair(seed=4, **CASES[name])
    assert_same_logits(pair, torch.float64, path, [7, 1, 19, 4])


@pytest.mark.parametrize("name", ["grouped", *SCALINGS])
def test_long_texts_equal_transformers(name):
    """Far out an angle's rounding shows: it must be theirs, that of float32."""
    sizes = {"max_position_embeddings": 2048, "num_hidden_layers": 1}
    pair = llama_pair(seed=6, base=10_000.0, **sizes, **CASES[name])
    assert_same_logits(pair, torch.float32, fast, [1600])


@DTYPES
@PATHS
@pytest.mark.parametrize(("length", "trained"), [(24, 16), (LENGTH, 10)])
def test_ntk_is_the_dynamic_scaling_at_one_length(length, trained, dtype, path):
    """Transformers raises the base as a text grows past the trained length, ours once for all."""
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    theirs, plain = llama_pair(seed=5, max_position_embeddings=trained, rope=dynamic)
    scaling = {"rotary_scaling": "ntk", "rotary_factor": 2.0 * length / trained - (2.0 - 1.0)}
    ours = Decoder(replace(plain.config, max_length=length, **scaling)).eval()
    ours.load_state_dict(plain.state_dict())
    assert_same_logits((theirs, ours), dtype, path, [length, length - 5])


@pytest.mark.parametrize("name", SCALINGS)
@torch.no_grad()
def test_every_scaling_matters(name):
    """Were one of them ignored, the logits would differ by far more than the tolerance."""
    (_, scaled), (_, plain) = llama_pair(**SCALINGS[name]), llama_pair()
    tokens, _ = prompts([LENGTH, LENGTH])
    assert (scaled(tokens) - plain(tokens)).abs().mean() > 0.05


@pytest.fixture(scope="module", params=["grouped", "window"])
def pair(request):
    return llama_pair(**SIZES[request.param])


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    path=st.sampled_from([fast, equation]),
)
def test_logits_equal_transformers_at_any_lengths(pair, lengths, seed, path):
    assert_same_logits(pair, torch.float64, path, lengths, seed)


@PATHS
@torch.no_grad()
def test_padded_prompts_equal_each_prompt_alone(pair, path):
    ours: Decoder = pair[1].double()
    lengths = [7, 1, 12, 4]
    tokens, first = prompts(lengths)
    with use_path(ours, path):
        together, _ = both_logits((pair[0].double(), ours), lengths)
        rows = [row[begin:] for row, begin in zip(tokens, first.flatten(), strict=True)]
        alone = torch.cat([ours(row[None])[0] for row in rows])
    torch.testing.assert_close(together, alone, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["grouped", "window", "yarn"])
def test_gradients_equal_transformers(name):
    """And every weight has one that matters."""
    pair = tuple(model.double() for model in llama_pair(seed=1, **CASES[name]))
    assert_same_gradients(pair, [both_logits(pair, [5, 9, 2])], limit=1e-4)
