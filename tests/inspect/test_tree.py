"""The tree of a beam search against the search itself, and against every hypothesis there is."""

from __future__ import annotations

import itertools

import pytest
import torch

from qkv.decode import complete, generate
from qkv.errors import UserError
from qkv.inspect import Trace
from tests.inspect.conftest import make_trace

SETTINGS = {"length_penalty": 1.0, "max_length": 4}


@pytest.fixture(scope="module")
def trace() -> Trace:
    return make_trace("encoder-decoder")


def searched(trace: Trace, beams: int, **settings):
    from qkv.config import DecodeConfig

    config = DecodeConfig(beams=beams, n_best=beams, **SETTINGS | settings)
    source = trace.reading.source
    return generate(trace.model, source.tokens, source.layout.lengths, config)


@pytest.mark.parametrize("beams", [2, 3, 5])
@pytest.mark.parametrize("row", [0, 1])
def test_the_tree_ends_where_the_search_ends(trace, beams, row):
    tree = trace.beam_tree(row, beams=beams, **SETTINGS)
    expected = searched(trace, beams)[row]
    assert [one.tokens for one in tree.outputs] == [one.tokens for one in expected]
    for mine, theirs in zip(tree.outputs, expected, strict=True):
        assert mine.score == pytest.approx(theirs.score, abs=1e-4)


def test_scores_are_sums_along_the_path(trace):
    tree = trace.beam_tree(beams=3, **SETTINGS)
    for node in tree.nodes:
        before = 0.0 if node.parent is None else tree.nodes[node.parent].score
        assert node.score == pytest.approx(before + node.log_probability, abs=1e-4)
        if node.parent is not None:
            parent = tree.nodes[node.parent]
            assert parent.step == node.step - 1 and parent.name == f"#{parent.token}"


def test_every_probability_is_the_models_own(trace):
    tree = trace.beam_tree(beams=3, **SETTINGS)
    source = trace.reading.source.tokens[:1]
    for node in tree.nodes:
        path, at = [], node.parent
        while at is not None:
            path.append(tree.nodes[at].token)
            at = tree.nodes[at].parent
        target = torch.tensor([[2, *reversed(path)]])
        with torch.no_grad():
            logits = trace.model.eval()(source, target)[0, -1]
        expected = float(logits.log_softmax(-1)[node.token])
        assert node.log_probability == pytest.approx(expected, abs=1e-4)


def test_kept_nodes_are_the_best_that_go_on(trace):
    tree = trace.beam_tree(beams=3, **SETTINGS)
    for step, nodes in itertools.groupby(tree.nodes, key=lambda node: node.step):
        group = list(nodes)
        assert [one.score for one in group] == sorted((o.score for o in group), reverse=True)
        going = [one for one in group if one.token != 3]
        alive = [one for one in group if any(o.parent == one.id for o in tree.nodes)]
        if alive and step < 3:
            assert alive == [one for one in going[:3] if one in alive]
        assert all(one.why for one in group if one.fate == "pruned")


def test_the_best_path_is_marked(trace):
    tree = trace.beam_tree(beams=3, **SETTINGS)
    tokens = [node.token for node in tree.nodes if node.best]
    best = tree.outputs[0]
    assert tokens == [*best.tokens, *([3] if best.finished else [])]
    assert [node.step for node in tree.nodes if node.best] == list(range(len(tokens)))


def test_ended_nodes_are_the_outputs(trace):
    tree = trace.beam_tree(beams=4, **SETTINGS)
    assert sum(node.fate == "ended" for node in tree.nodes) == len(tree.outputs) == 4
    assert tree.n_pruned == sum(node.fate == "pruned" for node in tree.nodes) > 0


def test_a_decoder_searches_on_from_its_prompt():
    from qkv.config import DecodeConfig

    trace = make_trace("decoder")
    tree = trace.beam_tree(row=1, beams=3, **SETTINGS)
    config = DecodeConfig(beams=3, n_best=3, **SETTINGS)
    expected = complete(trace.model, [[2, 8]], config)[0]
    assert [one.tokens for one in tree.outputs] == [one.tokens for one in expected]


def test_children_begin_at_the_root(trace):
    tree = trace.beam_tree(beams=2, **SETTINGS)
    roots = tree.children(None)
    assert roots and all(node.step == 0 for node in roots)
    assert all(child.parent == roots[0].id for child in tree.children(roots[0].id))


def test_one_beam_is_no_tree(trace):
    assert trace.beam_tree(beams=1, **SETTINGS).beams == 2


def test_an_encoder_has_no_search_and_a_changed_pass_none_either(trace):
    with pytest.raises(UserError, match="writes nothing"):
        make_trace("encoder").beam_tree()
    with pytest.raises(UserError, match="without changes"):
        trace.silence("decoder.0.self_attention").beam_tree()
