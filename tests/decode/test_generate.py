"""`generate` as a whole: the same result whatever the batch, the padding and the cache."""

import pytest
import torch
import torch.nn.functional as F

from qkv.config import DecodeConfig, ModelConfig
from qkv.decode import Handle, Request, generate
from qkv.decode.beam import BeamSearch
from qkv.decode.closed_batch import join
from qkv.decode.greedy import GreedySearch
from qkv.decode.request import token_limits
from qkv.errors import UserError
from qkv.model import EncoderDecoder, Layout
from tests.decode.helpers import assert_same, with_eos
from tests.parity.pairs import EOS

KINDS = {
    "greedy": DecodeConfig(beams=1),
    "beam": DecodeConfig(beams=4, n_best=3, length_penalty=0.7),
    "sample": DecodeConfig(sample=True, top_p=0.9, n_best=2, seed=5),
    "greedy_ruled": DecodeConfig(beams=1, no_repeat=2, min_length=4, repetition_penalty=1.2),
    "beam_ruled": DecodeConfig(beams=3, n_best=2, no_repeat=1, min_length=3),
    "sample_ruled": DecodeConfig(sample=True, n_best=2, seed=5, no_repeat=1, min_length=5),
    "greedy_ended": DecodeConfig(1, max_length=6, force_end=True),
    "beam_ended": DecodeConfig(4, n_best=2, max_length=6, force_end=True),
}
ALL_KINDS = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)


@ALL_KINDS
def test_batched_equals_one_by_one(ours, batch, config):
    source, lengths = batch
    alone = [
        generate(ours, row[None, :length], None, config, ids=[index])[0]
        for index, (row, length) in enumerate(zip(source, lengths, strict=True))
    ]
    together = generate(ours, source, lengths, config)
    assert_same(together, alone)
    assert len({len(with_eos(each[0])) for each in together}) > 1, "some must leave the batch early"


@ALL_KINDS
@pytest.mark.parametrize("fixed", [False, True])
def test_padded_equals_unpadded(ours, batch, config, fixed):
    """What stands in the padding, and how much of it, changes nothing."""
    source, lengths = batch
    wider = F.pad(source, (0, 9), value=7)
    rubbish = torch.where(torch.arange(wider.shape[1]) < lengths[:, None], wider, 7)
    found = generate(ours, rubbish, lengths, config, fixed=fixed)
    assert_same(found, generate(ours, source, lengths, config, fixed=fixed))


def search_without_cache(model, source, lengths, config, limits):
    """The same search, reading each hypothesis from its beginning at every step."""
    ends, bos = model.config.ends, model.config.bos_id
    draws = config.n_best if config.sample else 1
    handles = [
        Handle(Request((bos,), limit, ends, config, id=row, draw=draw))
        for row, limit in enumerate(limits)
        for draw in range(draws)
    ]
    beams, cpu = handles[0].request.beams, torch.device("cpu")
    size = model.config.vocab_size
    search = GreedySearch(size, cpu) if beams == 1 else BeamSearch(beams, size, cpu)
    search.change([], handles)
    rows = torch.arange(len(source)).repeat_interleave(draws)
    memory = model.remember(source[rows], Layout(lengths=lengths[rows]))
    hypotheses = torch.full((len(rows), beams, 1), bos)
    while not all(handle.is_done for handle in handles):
        hidden = model.decode(hypotheses.flatten(0, 1), memory)[:, -1]
        parents = search.state.advance(model.output(hidden).unflatten(0, (-1, beams)))
        if parents is not None:
            hypotheses = hypotheses.take_along_dim(parents[..., None], dim=1)
        hypotheses = torch.cat([hypotheses, search.state.newest[..., None]], dim=2)
        search.collect(search.state.report.tolist())
    return [join(handles[first : first + draws]) for first in range(0, len(handles), draws)]


@ALL_KINDS
@torch.inference_mode()
def test_with_cache_equals_without(ours, batch, config):
    limits = [11, 5, 9, 12, 3, 12]
    expected = search_without_cache(ours, *batch, config, limits)
    for fixed in (False, True):
        assert_same(generate(ours, *batch, config, max_lengths=limits, fixed=fixed), expected)


@pytest.mark.parametrize("beams", [1, 4])
def test_the_encoder_runs_once(ours, batch, beams):
    calls = []
    handle = ours.encoder.register_forward_hook(lambda *_: calls.append(1))
    generate(ours, *batch, DecodeConfig(beams, max_length=6))
    handle.remove()
    assert len(calls) == 1


@ALL_KINDS
def test_limits_are_each_sentences_own(ours, batch, config):
    limits = [1, 4, 2, 9, 3, 5]
    for limit, each in zip(
        limits, generate(ours, *batch, config, max_lengths=limits, suppress=[EOS]), strict=True
    ):
        ends = config.force_end  # then the last token is EOS, whatever is suppressed
        assert all(len(one.tokens) == limit - ends for one in each)
        assert all(one.finished == ends for one in each)


def test_a_sequence_that_ends_at_its_limit_is_finished(ours, batch):
    plain = generate(ours, *batch, DecodeConfig(1))
    ended = next(index for index, each in enumerate(plain) if each[0].finished)
    expected = plain[ended][0]
    limit = len(expected.tokens) + 1
    assert generate(ours, *batch, DecodeConfig(1, max_length=limit))[ended][0].finished
    cut = generate(ours, *batch, DecodeConfig(1, max_length=limit - 1))[ended][0]
    assert not cut.finished and cut.tokens == expected.tokens


def test_token_limits():
    model, config = ModelConfig(max_length=50), DecodeConfig()
    assert token_limits(model, config, [1, 10, 40], 0) == [22, 40, 49]
    assert token_limits(model, config, [1, 10, 40], 9) == [22, 40, 40]
    assert token_limits(model, DecodeConfig(max_length=7), [1, 10], 0) == [7, 7]
    assert token_limits(model, DecodeConfig(max_length=7), [1, 10], 0, 60) == [49, 49]
    assert token_limits(model, DecodeConfig(max_length=7), [1, 10], 0, [3, 8]) == [3, 8]


def test_mistakes_are_named(ours, batch):
    longest = ours.config.max_length
    with pytest.raises(UserError, match="prefix of 127 tokens"):
        generate(ours, *batch, DecodeConfig(), prefix=[5] * (longest - 1))
    with pytest.raises(UserError, match=r"source has 129 tokens.*max_length is 128"):
        generate(ours, torch.ones(1, longest + 1, dtype=torch.int64), None, DecodeConfig())
    with pytest.raises(UserError, match="leaves nothing to generate"):
        generate(ours, *batch, DecodeConfig(), max_lengths=[3, 0, 1, 1, 1, 1])


@pytest.mark.parametrize("fixed", [False, True])
def test_a_model_is_used_up_to_its_last_position(ours, fixed):
    longest = ours.config.max_length
    source = torch.randint(1, 99, (2, longest))
    config = DecodeConfig(2, max_length=10 * longest)
    found = generate(ours, source, None, config, prefix=[5, 6], suppress=[EOS], fixed=fixed)
    assert {len(one.tokens) for each in found for one in each} == {longest - 1}


def test_the_model_is_left_as_it_was(batch):
    model = EncoderDecoder(ModelConfig(vocab_size=100, d_model=16, d_ff=16, dropout=0.9))
    outputs = [generate(model, *batch, DecodeConfig(beams=2, max_length=6)) for _ in range(2)]
    assert outputs[0] == outputs[1], "dropout must be off"
    assert model.training and all(part.training for part in model.modules())
    generate(model.eval(), *batch, DecodeConfig(max_length=2))
    assert not model.training


def test_an_empty_batch(ours):
    assert generate(ours, torch.zeros(0, 5, dtype=torch.int64), None, DecodeConfig()) == []


@ALL_KINDS
@pytest.mark.parametrize("fixed", [False, True])
def test_bfloat16(ours, batch, config, fixed):
    """The model computes in 16 bits, but scores are summed in 32."""
    half = EncoderDecoder(ours.config).to(torch.bfloat16)
    half.load_state_dict(ours.state_dict())
    found = generate(half, *batch, config, max_lengths=6, fixed=fixed)
    for each in found:
        for one in each:
            rounded = float(torch.tensor(one.log_probability).bfloat16())
            assert rounded != one.log_probability == pytest.approx(rounded, rel=2**-8)
            length = len(with_eos(one))
            assert one.score == pytest.approx(one.log_probability / length**config.length_penalty)
