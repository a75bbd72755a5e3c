"""A step of fixed shape: one compiled graph without breaks serves all of them."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from qkv.config import DecodeConfig
from qkv.decode import Handle, Request
from qkv.decode.lane import Lane
from qkv.decode.prompts import Prefill
from tests.decode.test_generate import KINDS
from tests.parity.pairs import llama_pair, marian_pair

LLAMA = llama_pair(3, num_hidden_layers=1, max_position_embeddings=48)[1]
MARIAN = marian_pair(encoder_layers=1, decoder_layers=1)[1]


def joined(model, config, sources) -> tuple[Lane, list[Handle]]:
    """Rows that have read their prompts, and would go on for 12 tokens."""
    prompt = (model.config.bos_id,) if sources else (5, 6, 7)
    handles = [
        Handle(Request(prompt, 12, model.config.ends, config, tuple(source), (9,), id=number))
        for number, source in enumerate(sources or [(), (), ()])
    ]
    lane = Lane(model, handles[0].request.beams, fixed=True)
    prefill = Prefill.begin(model, handles, None)
    while prefill.n_left:
        prefill.advance(model, prefill.n_left)
    lane.join(prefill)
    return lane, handles


def run(lane, handles, step) -> None:
    while not all(handle.is_done for handle in handles):
        step()
        lane.search.collect(lane.search.state.report.tolist())


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_step_compiles_once_and_whole(kind):
    """Half of the searches with a decoder, half with an encoder besides: rules know no family."""
    torch._dynamo.reset()
    config, number = KINDS[kind], list(KINDS).index(kind)
    model, sources = (MARIAN, [(4, 5, 0), (6, 0)]) if number % 3 == 0 else (LLAMA, [])
    lane, handles = joined(model, config, sources)
    counter = CompileCounter()
    compiled = torch.compile(lambda step: step.run(), fullgraph=True, backend=counter)
    step = lane.recording.step
    run(lane, handles, lambda: compiled(step))
    assert counter.frame_count == 1
    lane, expected = joined(model, config, sources)
    run(lane, expected, lane.recording.step.run)
    for one, other in zip(handles, expected, strict=True):
        assert [x.tokens for x in one.hypotheses] == [x.tokens for x in other.hypotheses]


@torch.inference_mode()
def test_a_scratch_copy_changes_nothing():
    """It has the shapes and strides of the step, so that what is compiled on it serves the step."""
    lane, _ = joined(LLAMA, DecodeConfig(beams=3), [])
    step = lane.recording.step
    before = step.state.state.tokens.clone(), step.store.clone(), step.slots.start.clone()
    scratch = step.scratch()
    assert scratch.store.stride() == step.store.stride()
    scratch.run()
    after = step.state.state.tokens, step.store, step.slots.start
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
