"""No run of tokens twice and no early end, whatever the search, the prompts and the shapes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import DecodeConfig
from qkv.decode import Engine, complete, generate
from qkv.decode.request import suppressed
from qkv.errors import UserError
from tests.decode.helpers import stream
from tests.parity.pairs import llama_pair, marian_pair, sources

EOS = 3
LLAMA = llama_pair(3, max_position_embeddings=48)[1]
MARIAN = marian_pair()[1]


@st.composite
def configs(draw) -> DecodeConfig:
    """Searches and draws; a low penalty makes a model repeat itself wherever it may."""
    sample, beams = draw(st.booleans()), draw(st.sampled_from([1, 3]))
    return DecodeConfig(
        beams=beams,
        sample=sample,
        n_best=2 if sample else beams,
        temperature=0.5,
        max_length=draw(st.integers(1, 16)),
        min_length=draw(st.integers(0, 18)),
        no_repeat=draw(st.integers(1, 4)),
        repetition_penalty=draw(st.sampled_from([0.3, 1.0])),
        seed=draw(st.integers(0, 9)),
    )


def assert_ruled(prompt, one, config) -> None:
    """A run that the prompt itself has twice is nobody's fault."""
    tokens, n = [*prompt, *one.tokens], config.no_repeat
    runs = [(*tokens[at : at + n],) for at in range(len(tokens) - n + 1)]
    for at in range(len(prompt), len(tokens)):  # where a generated token ends a run
        if at >= n - 1:
            assert runs[at - n + 1] not in runs[: at - n + 1]
    assert not one.finished or len(one.tokens) >= config.min_length


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(4, 9), min_size=1, max_size=12), min_size=1, max_size=3),
    config=configs(),
    fixed=st.booleans(),
)
def test_after_prompts(prompts, config, fixed):
    found = complete(LLAMA, prompts, config, fixed=fixed)
    for prompt, each in zip(prompts, found, strict=True):
        assert each
        for one in each:
            assert_ruled(prompt, one, config)
    if config.beams == 1 and not config.sample:
        streamed = list(stream(Engine(LLAMA, fixed=fixed), prompts[0], config))
        assert streamed == found[0][0].tokens


@settings(max_examples=25, deadline=None)
@given(
    prefix=st.lists(st.integers(4, 9), max_size=6),
    config=configs(),
    fixed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_after_sources(prefix, config, fixed, seed):
    batch = sources([5, 9, 3], seed=seed)
    for each in generate(MARIAN, *batch, config, prefix, fixed=fixed):
        for one in each:
            assert one.tokens[: len(prefix)] == prefix
            rest = one.tokens[len(prefix) :]
            assert not one.finished or len(rest) >= config.min_length
            given = [MARIAN.config.bos_id, *prefix]
            assert_ruled(given, type(one)(rest, 0.0, 0.0, one.finished), config)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("beams", [1, 3])
def test_an_end_that_is_forced_takes_the_last_place(beams, fixed):
    config = DecodeConfig(beams, n_best=beams, force_end=True)
    settings = {"suppress": LLAMA.config.ends, "fixed": fixed}  # or it might come by itself
    found = complete(LLAMA, [[4], [5, 6]], config, [5, 3], **settings)
    for limit, each in zip([5, 3], found, strict=True):
        assert [(len(one.tokens), one.finished) for one in each] == [(limit - 1, True)] * beams


@pytest.mark.parametrize("token", [-1, LLAMA.config.vocab_size])
def test_only_tokens_that_there_are_can_be_suppressed(token):
    assert suppressed(DecodeConfig(suppress=(5, 4)), LLAMA.config) == (5, 4)
    words = rf"suppress names the token {token}, but those of the model go from 0 to \d+; leave"
    with pytest.raises(UserError, match=words):
        suppressed(DecodeConfig(suppress=(5, token)), LLAMA.config)
