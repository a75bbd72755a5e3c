"""Every architecture against transformers on the same weights, in float64 and on both paths.

Nothing hides behind rounding there, and gradients of all weights are compared too. Sizes, lengths,
files and exports are varied in tests/convert.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from qkv.convert.architectures import ARCHITECTURES
from qkv.model import Decoder, equation, fast, use_path
from qkv.model.positions.disentangled import buckets
from tests.convert.small import answers, cases, model_of
from tests.parity.pairs import (
    EOS,
    KeepDouble,
    assert_same_gradients,
    both_logits,
    in_double,
    llama_pair,
    marian_pair,
    prompts,
    sources,
    with_ours,
)

pytestmark = pytest.mark.filterwarnings("ignore:Left out of config.json")  # of long contexts
PATHS = pytest.mark.parametrize("path", [fast, equation])
NO_PADDING = {"pad_token_id": None}  # whose embedding has no gradient there
# What differs from the small config of an architecture, so that both sides can be exact
EXACT: dict[str, dict[str, Any]] = {
    # √(3·D/H), which is taken in float32 whatever the weights are, is whole.
    "deberta": {"hidden_size": 24},
    "deberta-v2": {"hidden_size": 24},
    "marian": {
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
        "forced_eos_token_id": 1,
    },
    **{name: NO_PADDING for name, x in ARCHITECTURES.items() if x.family == "decoder"},
}


CASES = cases(EXACT)


@PATHS
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_equal_transformers(case, path):
    theirs, ours = with_ours(model_of(CASES[case]))
    with KeepDouble(), use_path(ours, path):
        pair = in_double(theirs), ours.double()
        outputs = answers(CASES[case][1], pair[1], pair[0], [9, 4, 1])
        for mine, other in outputs:
            assert mine.shape == other.shape and other.abs().max() > 1e-2
            torch.testing.assert_close(mine, other, atol=1e-9 * other.abs().max().item(), rtol=0)
        # A bias of logits is no parameter of theirs.
        assert_same_gradients(pair, outputs, limit=1e-8, unused=("output.projection.bias",))


TRAINED = {"original_max_position_embeddings": 256}
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, **TRAINED},
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        **TRAINED,
    },
}


@pytest.mark.parametrize("name", ["none", *SCALINGS])
@torch.no_grad()
def test_far_out_an_angle_is_rounded_as_theirs_is(name):
    sizes = {"max_position_embeddings": 2048, "num_hidden_layers": 1}
    pair = llama_pair(seed=6, base=10_000.0, rope=SCALINGS.get(name), **sizes)
    torch.testing.assert_close(*both_logits(pair, [1600]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", SCALINGS)
@torch.no_grad()
def test_every_scaling_matters(name):
    """Were one of them ignored, the logits would differ by far more than the tolerance."""
    (_, scaled), (_, plain) = llama_pair(rope=SCALINGS[name]), llama_pair()
    tokens, _ = prompts([40, 40])
    assert (scaled(tokens) - plain(tokens)).abs().mean() > 0.05


@PATHS
@pytest.mark.parametrize(("length", "trained"), [(24, 16), (40, 10)])
@torch.no_grad()
def test_ntk_is_the_dynamic_scaling_at_one_length(length, trained, path):
    """Transformers raises the base as a text grows past the trained length, ours once for all."""
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    theirs, plain = llama_pair(seed=5, max_position_embeddings=trained, rope=dynamic)
    scaling = {"rotary_scaling": "ntk", "rotary_factor": 2.0 * length / trained - (2.0 - 1.0)}
    ours = Decoder(replace(plain.config, max_length=length, **scaling)).eval()
    ours.load_state_dict(plain.state_dict())
    with use_path(ours, path):
        both = both_logits((theirs, ours), [length, length - 5])
    torch.testing.assert_close(*both, atol=1e-4, rtol=0)


@settings(max_examples=200)
@given(st.integers(2, 300), st.integers(3, 5000))
def test_the_buckets_of_deberta_are_theirs(n_buckets, farthest):
    """To the last distance, where one more rounding would open one more bucket."""
    if farthest - 1 > n_buckets // 2:
        apart = torch.arange(-farthest - 9, farthest + 10)
        expected = make_log_bucket_position(apart, n_buckets, farthest).long()
        assert torch.equal(buckets(apart, n_buckets, farthest), expected)


@torch.no_grad()
def test_marian_is_worth_decoding():
    """Greedy outputs differ from source to source, are no mere repetition, and some end in EOS."""
    source, lengths = sources([5, 9, 3, 12, 7, 4, 8, 6])
    seen = (torch.arange(source.shape[1]) < lengths[:, None]).long()
    outputs = (
        marian_pair()[0]
        .generate(source, attention_mask=seen, num_beams=1, do_sample=False, max_new_tokens=30)
        .tolist()
    )
    assert len({tuple(row) for row in outputs}) >= 6
    assert 1 <= sum(EOS in row for row in outputs) < len(outputs)
    assert sum(len(set(row)) for row in outputs) / len(outputs) > 4
