"""Greedy and beam search against `transformers` on the same weights."""

import pytest

from qkv.config import DecodeConfig
from qkv.decode import generate
from tests.decode.helpers import transformers_search, with_eos
from tests.parity.pairs import marian_pair, sources

SETTINGS = [
    # beams, length_penalty, early_stopping, n_best, max_length
    (2, 1.0, False, 1, 16),
    (2, 0.0, True, 2, 9),
    (2, 1.5, "never", 2, 12),
    (3, 0.6, False, 3, 12),
    (3, 1.0, True, 3, 12),
    (3, 2.0, "never", 1, 8),
    (4, 1.0, False, 4, 16),
    (4, 0.6, True, 1, 12),
    (4, 0.0, "never", 2, 12),
    (4, -0.5, False, 4, 10),
    (5, 1.5, False, 5, 10),
    (5, 1.0, "never", 5, 10),
    (5, 0.0, True, 3, 1),
    (5, -1.0, "never", 3, 2),
]


def check_same(pair, batch, config, prefix=(), **ours):
    marian, model = pair
    keywords = {"num_beams": config.beams, "max_new_tokens": config.max_length}
    if config.beams > 1:
        keywords |= {
            "length_penalty": config.length_penalty,
            "early_stopping": config.early_stopping,
            "num_return_sequences": config.n_best,
        }
    keywords |= {
        "no_repeat_ngram_size": config.no_repeat,
        "min_new_tokens": config.min_length or None,
        "repetition_penalty": config.repetition_penalty,
    }
    expected = transformers_search(marian, *batch, prefix, **keywords)
    found = [one for each in generate(model, *batch, config, prefix, **ours) for one in each]
    assert [with_eos(one) for one in found] == [tokens for tokens, _ in expected]
    for one, (_, score) in zip(found, expected, strict=True):
        assert score is None or one.score == pytest.approx(score, abs=1e-4)
    return found


@pytest.mark.parametrize(
    ("beams", "length_penalty", "early_stopping", "n_best", "max_length"), SETTINGS
)
def test_beam_search(pair, batch, beams, length_penalty, early_stopping, n_best, max_length):
    check_same(pair, batch, DecodeConfig(beams, length_penalty, early_stopping, n_best, max_length))


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_beam_search_with_other_weights(seed):
    batch = sources([8, 2, 11, 6], vocab_size=40, seed=seed)
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    pair = marian_pair(seed, vocab_size=40, **heads, decoder_layers=1)
    found = check_same(pair, batch, DecodeConfig(beams=4, n_best=2, max_length=16))
    assert {one.finished for one in found} == {True, False}


@pytest.mark.parametrize("max_length", [1, 7, 20])
def test_greedy(pair, batch, max_length):
    check_same(pair, batch, DecodeConfig(beams=1, max_length=max_length))


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("fixed", [False, True])
def test_forced_prefix(pair, batch, beams, fixed):
    found = check_same(
        pair, batch, DecodeConfig(beams, max_length=8), prefix=(17, 58, 4), fixed=fixed
    )
    assert all(one.tokens[:3] == [17, 58, 4] for one in found)


@pytest.mark.parametrize(
    ("no_repeat", "min_length", "penalty", "fixed"),
    [
        (0, 0, 0.6, False),
        (1, 1, 1.0, False),
        (2, 6, 1.3, False),
        (3, 16, 0.5, False),
        (1, 0, 0.6, True),
        (2, 1, 1.0, True),
        (3, 6, 1.3, True),
        (0, 16, 0.5, True),
    ],
)
@pytest.mark.parametrize("beams", [1, 4])
def test_repeating_and_ending_early(pair, batch, beams, no_repeat, min_length, penalty, fixed):
    """Penalties below 1 make a model repeat itself, so that there is something to avoid."""
    config = DecodeConfig(
        beams,
        0.8,
        n_best=beams,
        max_length=16,
        min_length=min_length,
        no_repeat=no_repeat,
        repetition_penalty=penalty,
    )
    check_same(pair, batch, config, fixed=fixed)
    check_same(pair, batch, config, prefix=(17, 58, 17), fixed=fixed)


@pytest.mark.parametrize("beams", [1, 4])
def test_the_start_counts_with_their_least_length(pair, batch, beams):
    marian, model = pair
    expected = transformers_search(marian, *batch, num_beams=beams, max_new_tokens=16, min_length=8)
    found = generate(model, *batch, DecodeConfig(beams, max_length=16, min_length=7))
    assert [with_eos(each[0]) for each in found] == [tokens for tokens, _ in expected]


@pytest.mark.parametrize("beams", [1, 3])
def test_suppressed_tokens(pair, batch, beams):
    marian, model = pair
    config = DecodeConfig(beams, max_length=10)
    plain = generate(model, *batch, config)
    banned = sorted({token for each in plain for token in each[0].tokens[:2]})
    expected = transformers_search(
        marian, *batch, num_beams=beams, max_new_tokens=10, suppress_tokens=banned
    )
    found = [each[0] for each in generate(model, *batch, config, suppress=banned)]
    assert [with_eos(one) for one in found] == [tokens for tokens, _ in expected]
    assert not set(banned) & {token for one in found for token in one.tokens}
