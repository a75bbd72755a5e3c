"""The fixed mode: the same results in tensors whose shapes never change, step after step."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter

from qkv.config import DecodeConfig
from qkv.decode import Graphs, PromptBatch, generate, prefill
from qkv.decode.captured.generate import build_search, build_task
from qkv.decode.captured.loop import few_sizes
from tests.decode.helpers import assert_same
from tests.decode.test_generate import ALL_KINDS
from tests.parity.marian import sources


@ALL_KINDS
def test_fixed_equals_growing(ours, batch, config):
    assert_same(generate(ours, *batch, config, fixed=True), generate(ours, *batch, config))


@ALL_KINDS
def test_tensors_are_used_again(ours, config):
    """Batches that round to the same shape share a slot, and leave each other no trace."""
    graphs = Graphs()
    for lengths in ([5, 9, 3, 12, 7], [16, 2, 2, 2, 16], [1, 1, 1, 1, 13], [8, 3, 8, 3, 8]):
        batch = sources(lengths, seed=sum(lengths))
        found = generate(ours, *batch, config, max_lengths=20, fixed=True, graphs=graphs)
        assert_same(found, generate(ours, *batch, config, max_lengths=20))
    assert len(graphs) == 1
    generate(ours, *sources([17]), config, fixed=True, graphs=graphs)
    assert len(graphs) == 2


def test_the_oldest_slots_go_first(ours):
    graphs = Graphs(most=2)
    for rows in (1, 2, 3, 2, 3):
        batch = sources([4] * rows)
        config = DecodeConfig(2, max_length=3)
        found = generate(ours, *batch, config, fixed=True, graphs=graphs)
        assert_same(found, generate(ours, *batch, config))
        assert len(graphs) <= 2


@ALL_KINDS
@torch.inference_mode()
def test_a_step_compiles_once_and_whole(ours, batch, config):
    """One graph without breaks serves every step, whatever lengths have been reached."""
    torch._dynamo.reset()
    source, lengths = batch
    suppress = (7,)
    search = build_search(config, (0,), suppress)
    prompts = [[ours.config.bos_id]] * 6
    task = build_task(ours.config, config, prompts, [20] * 6, None, source.device).with_room(64)
    batch = PromptBatch(torch.tensor(prompts), source=source, source_lengths=lengths)
    memory, cache = prefill(ours, batch, search.rows, 1)
    slot = Graphs().slot(ours, search, memory, cache, task)
    slot.load(memory, cache, search.start(task))
    counter = CompileCounter()
    step = torch.compile(slot.step.function, fullgraph=True, backend=counter)
    for _ in range(20):
        step()
    assert counter.frame_count == 1
    expected = generate(ours, source, lengths, config, max_lengths=20, suppress=suppress)
    assert_same(search.finish(slot.state), expected)


@given(st.integers(1, 5000))
def test_few_sizes(size):
    rounded = few_sizes(size)
    assert size <= rounded <= max(size, 1.25 * size)
    assert rounded == few_sizes(rounded)
    assert bin(rounded).rstrip("0").count("1") <= 3 and len(bin(rounded).rstrip("0")) <= 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@ALL_KINDS
def test_captured_steps_equal_plain_ones(ours, config):
    model = type(ours)(ours.config).to("cuda")
    model.load_state_dict(ours.state_dict())
    graphs = Graphs()
    for lengths in ([5, 9, 3, 12, 7], [16, 2, 2, 2, 16], [30, 4], [8, 3, 8, 3, 8]):
        source, source_lengths = (x.cuda() for x in sources(lengths, seed=sum(lengths)))
        found = generate(model, source, source_lengths, config, graphs=graphs)
        assert_same(found, generate(model, source, source_lengths, config, fixed=False), 1e-3)
