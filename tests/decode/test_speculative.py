"""Speculative decoding: exactly the greedy output, in fewer passes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import DecodeConfig
from qkv.decode import complete
from qkv.decode.speculative import speculate
from qkv.errors import UserError
from tests.parity.gpt import gpt2_pair
from tests.parity.llama import llama_pair

GREEDY = DecodeConfig(beams=1, max_length=30)


@pytest.fixture(scope="module")
def model():
    return llama_pair(5, max_length=64)[1]


@pytest.fixture(scope="module")
def blurred(model):
    """A draft that is often right: the same weights with some noise."""
    draft = type(model)(model.config).eval()
    draft.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in draft.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.02 * parameter.std() * noise if parameter.ndim > 1 else 0)
    return draft


@settings(max_examples=25, deadline=None)
@given(
    prompt=st.lists(st.integers(4, 99), min_size=1, max_size=12),
    ahead=st.integers(1, 9),
    limit=st.integers(1, 40),
)
def test_the_output_is_the_greedy_one(model, blurred, prompt, ahead, limit):
    expected = complete(model, [prompt], GREEDY, limit)[0][0]
    for draft in (model, blurred, gpt2_pair(1, max_length=20)[1]):  # right, mostly right, wrong
        found = speculate(model, draft, prompt, GREEDY, limit, ahead=ahead)
        one = found.hypothesis
        assert one.tokens == expected.tokens and one.finished == expected.finished
        assert one.log_probability == pytest.approx(expected.log_probability, abs=1e-3)
        assert found.accepted <= found.drafted


def test_a_good_draft_saves_passes(model, blurred):
    prompt = [5, 6, 7]
    n_tokens = len(complete(model, [prompt], GREEDY, suppress=[3])[0][0].tokens)
    perfect = speculate(model, model, prompt, GREEDY, ahead=5, suppress=[3])
    useful = speculate(model, blurred, prompt, GREEDY, ahead=5, suppress=[3])
    assert n_tokens == 30
    assert perfect.passes == 5 and perfect.accepted == perfect.drafted
    assert perfect.passes < useful.passes < n_tokens


def test_a_draft_must_fit(model):
    other = gpt2_pair(vocab_size=50)[1]
    with pytest.raises(UserError, match="one vocabulary"):
        speculate(model, other, [5], GREEDY)
    for more in ({"sample": True}, {"no_repeat": 2}, {"min_length": 3}):
        with pytest.raises(UserError, match="greedy search only"):
            speculate(model, model, [5], DecodeConfig(beams=1, **more))
