"""A closed glass box costs nothing: the compiled graph does not know that there is one."""

from __future__ import annotations

import torch

from qkv.inspect.probe import forward
from tests.inspect.conftest import CONFIGS, READINGS, make_trace


def compiled_graphs(family: str, traced: bool) -> list[str]:
    """The code of every graph that a pass compiles to, with or without a trace before it."""
    torch._dynamo.reset()
    trace, graphs = make_trace(family), []
    trace.model.eval()
    if traced:
        trace.silence(trace.keys("*.heads")[0])["logits"]
        trace.many(["*"])

    def note(graph: torch.fx.GraphModule, inputs):
        graphs.append(graph.code)
        return graph.forward

    run = torch.compile(forward, backend=note, fullgraph=True)
    with torch.no_grad():
        run(trace.model, READINGS[family])
    return graphs


def test_the_graph_is_the_same_after_a_trace():
    for family in CONFIGS:
        before, after = compiled_graphs(family, False), compiled_graphs(family, True)
        assert len(before) == 1 and before == after


def test_a_compiled_model_is_not_compiled_again_after_a_trace():
    torch._dynamo.reset()
    trace, compiled = make_trace("decoder"), []

    def count(graph: torch.fx.GraphModule, inputs):
        compiled.append(graph)
        return graph.forward

    trace.model.eval()
    run = torch.compile(trace.model, backend=count)
    tokens = trace.reading.target.tokens
    with torch.no_grad():
        first = run(tokens)
        trace.many(["*.weights"])
        second = run(tokens)
    assert len(compiled) == 1
    assert torch.equal(first, second)
