"""Beam search against exhaustive search, and what must hold for any beam."""

import itertools

import pytest
import torch

from qkv.config import DecodeConfig, ModelConfig
from qkv.decode import Hypothesis, generate
from qkv.model import EncoderDecoder, Layout
from tests.decode.helpers import assert_same, teacher_forced, with_eos

PENALTIES = [0.0, 0.6, 1.0, 1.5]


def tiny_model(vocab_size: int, seed: int) -> EncoderDecoder:
    torch.manual_seed(seed)
    model = EncoderDecoder(
        ModelConfig(
            vocab_size=vocab_size,
            d_model=16,
            n_heads=2,
            d_ff=32,
            max_length=16,
            n_encoder_layers=1,
            n_decoder_layers=1,
            dropout=0.0,
        )
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def every_output(model: EncoderDecoder, source, limit: int, penalty: float) -> list[Hypothesis]:
    """All sequences that end with EOS or are cut at the limit, best first."""
    vocab_size, eos = model.config.vocab_size, model.config.eos_id
    full = torch.tensor(list(itertools.product(range(vocab_size), repeat=limit)))
    steps = teacher_forced(model, source.expand(len(full), -1), Layout(), full)
    found = {}
    for row, values in zip(full.tolist(), steps, strict=True):
        length = row.index(eos) + 1 if eos in row else limit
        log_probability = float(values[:length].sum())
        one = Hypothesis(
            [token for token in row[:length] if token != eos],
            log_probability,
            log_probability / length**penalty,
            eos in row,
        )
        found[tuple(row[:length])] = one
    return sorted(found.values(), key=lambda one: -one.score)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize(("vocab_size", "limit", "seed"), [(4, 4, 0), (5, 3, 1), (6, 3, 2)])
def test_a_beam_as_wide_as_the_space_is_exhaustive(penalty, vocab_size, limit, seed):
    model = tiny_model(vocab_size, seed)
    sources = torch.randint(vocab_size, (2, 5))
    expected = [every_output(model, source, limit, penalty) for source in sources]
    width = len(expected[0])
    config = DecodeConfig(width, penalty, "never", n_best=width, max_length=limit)
    assert_same(generate(model, sources, None, config), expected)


def repeats(tokens: list[int], n: int) -> bool:
    runs = [(*tokens[at : at + n],) for at in range(len(tokens) - n + 1)]
    return len({*runs}) < len(runs)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize(("no_repeat", "min_length"), [(1, 0), (2, 0), (3, 2), (0, 3), (2, 1)])
def test_rules_leave_the_best_of_what_they_allow(penalty, no_repeat, min_length):
    """Of all sequences, those without a run twice, BOS counted, and without an early end."""
    model = tiny_model(5, seed=1)
    source = torch.randint(5, (1, 5))
    bos, eos = model.config.bos_id, model.config.eos_id
    expected = [
        one
        for one in every_output(model, source[0], 4, penalty)
        if not (no_repeat and repeats([bos, *with_eos(one, eos)], no_repeat))
        and not (one.finished and len(one.tokens) < min_length)
    ]
    config = DecodeConfig(
        700, penalty, "never", n_best=700, max_length=4, no_repeat=no_repeat, min_length=min_length
    )
    found = generate(model, source, None, config)
    assert [one.tokens for one in found[0]] == [one.tokens for one in expected]
    assert_same(found, [expected])


@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_narrower_beam_that_keeps_every_prefix_finds_the_best(penalty):
    """27 prefixes of 3 tokens that are not EOS; 40 beams hold them all, and the best endings."""
    model = tiny_model(4, seed=5)
    source = torch.randint(4, (1, 5))
    expected = every_output(model, source[0], 4, penalty)[:5]
    config = DecodeConfig(40, penalty, "never", n_best=5, max_length=4)
    assert_same(generate(model, source, None, config), [expected])


def test_more_results_than_sequences():
    """Two tokens of room and a vocabulary of 4 make 13 sequences, however many are asked for."""
    model = tiny_model(4, seed=3)
    found = generate(model, torch.tensor([[1, 3]]), None, DecodeConfig(50, n_best=50, max_length=2))
    assert len({tuple(with_eos(one, eos=3)) for one in found[0]}) == len(found[0]) == 13


@pytest.mark.parametrize("beams", [2, 5])
def test_hypotheses_are_sorted_and_told_truly(ours, batch, beams):
    """Best first, no doubles, and the log P is that of a pass without cache."""
    source, lengths = batch
    config = DecodeConfig(beams, 0.8, n_best=beams, max_length=14)
    for row, length, each in zip(source, lengths, generate(ours, *batch, config), strict=True):
        assert len(each) == len({tuple(with_eos(one)) for one in each}) == beams
        assert [one.score for one in each] == sorted((one.score for one in each), reverse=True)
        for one in each:
            tokens = torch.tensor([with_eos(one)])
            log_probability = teacher_forced(ours, row[None, :length], Layout(), tokens).sum()
            assert one.log_probability == pytest.approx(float(log_probability), abs=1e-3)
            assert one.score == pytest.approx(one.log_probability / tokens.numel() ** 0.8, abs=1e-5)
            assert one.finished or len(one.tokens) == 14


def test_a_wider_beam_searches_more(ours, batch):
    """Without a length penalty and without early stopping, the sum of scores rises with width."""
    totals = []
    for beams in (1, 3, 12):
        config = DecodeConfig(beams, 0.0, "never", max_length=10)
        totals.append(sum(each[0].score for each in generate(ours, *batch, config)))
    assert totals[0] < totals[1] < totals[2]
