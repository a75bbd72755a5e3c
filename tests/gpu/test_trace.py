"""Traces on a GPU: the same numbers as on a CPU, and a closed box costs nothing there either."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from qkv.inspect import Side, Trace
from qkv.model import Layout
from tests.inspect.conftest import CONFIGS, make_trace


def moved(trace: Trace, dtype: torch.dtype = torch.float32) -> Trace:
    def side(one: Side | None) -> Side | None:
        if one is None:
            return None
        lengths = one.layout.lengths
        layout = Layout(None if lengths is None else lengths.cuda())
        return replace(one, tokens=one.tokens.cuda(), layout=layout)

    inputs = trace.inputs
    inputs = replace(
        inputs,
        source=side(inputs.source),
        target=side(inputs.target),
        labels=inputs.labels.cuda(),
        segments=None if inputs.segments is None else inputs.segments.cuda(),
    )
    return Trace(trace.model.cuda().to(dtype), inputs)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_gpu_sees_what_a_cpu_sees(family):
    expected = {key: make_trace(family)[key] for key in make_trace(family)}
    there = moved(make_trace(family))
    for key, value in expected.items():
        found = there[key].cpu()
        shut = value.isneginf() if value.is_floating_point() else value < -(10**9)
        torch.testing.assert_close(
            found.masked_fill(shut, 0), value.masked_fill(shut, 0), rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize("family", CONFIGS)
def test_one_head_in_bfloat16_is_its_part_of_all(family):
    there = moved(make_trace(family), torch.bfloat16)
    key = there.keys("*.self_attention.weights")[-1]
    torch.testing.assert_close(there.get(key, head=2), there[key][:, 2:3])
    assert there[key].dtype == torch.bfloat16


def test_attribution_and_the_tree_run_there():
    there = moved(make_trace("encoder-decoder"))
    assert there.attribution(positions=1).scores["source"].isfinite().all()
    here = make_trace("encoder-decoder").beam_tree(beams=3, max_length=4)
    tree = there.beam_tree(beams=3, max_length=4)
    assert [one.tokens for one in tree.outputs] == [one.tokens for one in here.outputs]
