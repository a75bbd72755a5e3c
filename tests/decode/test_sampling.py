"""Random draws: the right frequencies, within the rules, and the same for the same seed."""

import pytest
import torch

from qkv.config import DecodeConfig
from qkv.decode import Request, generate
from qkv.decode.row_rules import Sampling
from qkv.model import Layout
from tests.decode.helpers import assert_same, teacher_forced, with_eos

N_DRAWS = 4000


@pytest.fixture(scope="module")
def one_source(batch):
    return batch[0][1:2, :9]


def first_tokens(ours, source, **settings):
    """Many independent first tokens for one source, and the model's probabilities."""
    config = DecodeConfig(sample=True, n_best=N_DRAWS, max_length=1, **settings)
    found = generate(ours, source, None, config)[0]
    drawn = torch.tensor([with_eos(one)[0] for one in found])
    every = torch.arange(ours.config.vocab_size)[:, None]
    log_probability = teacher_forced(ours, source.expand(len(every), -1), Layout(), every)[:, 0]
    return torch.bincount(drawn, minlength=len(every)) / N_DRAWS, log_probability


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 3.0},
        {"temperature": 2.0, "top_k": 6},
        {"temperature": 2.0, "top_p": 0.8},
        {"temperature": 2.0, "min_p": 0.2},
        {"temperature": 4.0, "top_k": 30, "top_p": 0.9},
    ],
    ids=str,
)
def test_frequencies(ours, one_source, settings):
    frequency, log_probability = first_tokens(ours, one_source, **settings)
    request = Request((1,), 1, (0,), DecodeConfig(sample=True, **settings))
    sampling = Sampling.of([request], torch.device("cpu"))
    expected = sampling.restrict(log_probability[None])[0].softmax(-1)
    assert not frequency[expected == 0].any(), "a draw left the set that the rules allow"
    # total variation of N draws over n outcomes is about √(n / 2πN)
    n_outcomes = 1 / (expected**2).sum()
    bound = 3 * float((n_outcomes / (6.28 * N_DRAWS)) ** 0.5) + 0.01
    assert 0.5 * (frequency - expected).abs().sum() < bound
    assert expected.max() < 0.98, "a test with one likely outcome shows nothing"


def test_the_same_seed_gives_the_same_text(ours, batch):
    def draw(seed):
        config = DecodeConfig(sample=True, temperature=1.5, seed=seed)
        return generate(ours, *batch, config)

    assert draw(3) == draw(3)
    assert sum(one != two for one, two in zip(draw(3), draw(4), strict=True)) >= 4


def test_draws_of_one_sentence_differ_and_more_of_them_change_none(ours, batch):
    few, many = (
        generate(ours, *batch, DecodeConfig(sample=True, temperature=2.0, n_best=n, max_length=8))
        for n in (3, 6)
    )
    for some, all_of_them in zip(few, many, strict=True):
        texts = {tuple(with_eos(one)) for one in all_of_them}
        assert len(texts) >= 5
        assert {tuple(with_eos(one)) for one in some} <= texts
        scores = [one.score for one in all_of_them]
        assert scores == sorted(scores, reverse=True)


def test_log_probability_is_the_models_own(ours, batch):
    """Temperature and rules change what is drawn, not what the model says of it."""
    source, lengths = batch
    config = DecodeConfig(sample=True, temperature=2.0, top_k=20, max_length=8)
    for row, length, each in zip(source, lengths, generate(ours, *batch, config), strict=True):
        tokens = torch.tensor([with_eos(each[0])])
        expected = teacher_forced(ours, row[None, :length], Layout(), tokens).sum()
        assert each[0].log_probability == pytest.approx(float(expected), abs=1e-3)


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"temperature": 0.0}, {"top_p": 0.0}], ids=str)
def test_draws_without_choice_are_greedy(ours, batch, settings):
    found = generate(ours, *batch, DecodeConfig(sample=True, **settings))
    assert_same(found, generate(ours, *batch, DecodeConfig(beams=1)))
