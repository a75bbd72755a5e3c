"""The tree of a beam search: against the search itself, and as it is drawn."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkv.config import DecodeConfig
from qkv.decode import Hypothesis, complete, generate
from qkv.errors import UserError
from qkv.inspect import Trace
from qkv.inspect.answers.beam_tree import COLOURS, MAX_LEAVES, BeamTree, Fate, Node
from tests.inspect.conftest import make_trace
from tests.inspect.test_draw import draw_strictly, printed

SETTINGS = {"length_penalty": 1.0, "max_length": 4}


@pytest.fixture(scope="module")
def trace() -> Trace:
    return make_trace("encoder-decoder")


def searched(trace: Trace, beams: int, **settings):
    config = DecodeConfig(beams=beams, n_best=beams, **SETTINGS | settings)
    source = trace.inputs.source
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
    source = trace.inputs.source.tokens[:1]
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


def test_a_search_that_may_write_nothing_says_so():
    trace = make_trace("decoder")
    mute = Trace(trace.model, replace(trace.inputs, suppress=tuple(range(23))))
    with pytest.raises(UserError, match="nothing may be generated"):
        mute.beam_tree(max_length=3)


def test_the_trees_own_settings_are_enough():
    trace = make_trace("decoder")
    decode = replace(trace.inputs.decode, beams=4, n_best=3)
    own = Trace(trace.model, replace(trace.inputs, decode=decode))
    assert own.beam_tree(beams=2, max_length=3).beams == 2


def node(
    id: int,
    parent: int | None,
    step: int,
    name: str,
    fate: Fate = "kept",
    p: float = 0.5,
    best: bool = False,
    why: str = "",
) -> Node:
    return Node(id, parent, step, id, name, math.log(p), math.log(p), fate, why, best)


SMALL = BeamTree(
    (
        node(0, None, 0, "我", best=True, p=0.9),
        node(1, None, 0, "<b>", "pruned", p=0.001, why="too small"),
        node(2, 0, 1, "爱", "ended", best=True),
        node(3, 0, 1, "$a$ $b$", "ended", p=0.25),
        node(4, 0, 1, "x", "pruned", p=0.2, why="too small"),
    ),
    (Hypothesis([0], -0.8, -0.4, True), Hypothesis([0, 3], -1.5, -0.75, True)),
    ("我 爱", "我 <b>"),
    2,
    1.0,
)


def many(count: int) -> BeamTree:
    """One way that is kept, and so many candidates beside it."""
    others = [
        node(n, 0, 1, f"t{n}", "pruned", p=1 / n, why="too small") for n in range(2, count + 2)
    ]
    nodes = (node(0, None, 0, "a", best=True), node(1, 0, 1, "b", "ended", best=True), *others)
    return BeamTree(nodes, (Hypothesis([0, 1], -1.0, -0.5, True),), ("a b",), 2, 1.0)


def texts(figure: Figure) -> dict[str, str]:
    """What is written in the tree, and in which colour."""
    (axes,) = figure.axes
    return {text.get_text(): str(text.get_color()) for text in axes.texts}


def lines(axes: Axes) -> list[str]:
    return [str(line.get_color()) for line in axes.lines]


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
def test_no_two_candidates_share_a_place_and_parents_are_amid_their_children(family: str) -> None:
    tree = make_trace(family).beam_tree(beams=3, max_length=6)
    nodes, _ = tree.shown()
    places = [text.get_position() for text in tree.draw().axes[0].texts]
    assert len({*places}) == len(places) == len(nodes)
    heights = {node.id: y for node, (_, y) in zip(nodes, places, strict=True)}
    parents = {node.parent for node in nodes}
    leaves = sorted(heights[node.id] for node in nodes if node.id not in parents)
    assert leaves == [float(-n) for n in range(len(leaves) - 1, -1, -1)]
    for parent in parents - {None}:
        below = [heights[node.id] for node in nodes if node.parent == parent]
        assert heights[parent] == pytest.approx(sum(below) / len(below))


def test_the_best_way_is_coloured_and_every_candidate_has_its_probability() -> None:
    figure = SMALL.draw()
    assert texts(figure) == {
        "我 0.90": COLOURS["best"],
        "<b> <0.01": COLOURS["pruned"],
        "爱 0.50 ■": COLOURS["best"],
        "$a$␣$b$ 0.25 ■": COLOURS["ended"],
        "x 0.20": COLOURS["pruned"],
    }
    assert lines(figure.axes[0]) == [COLOURS["best"], COLOURS["ended"], COLOURS["pruned"]]
    assert figure.axes[0].lines[2].is_dashed()
    assert figure.get_suptitle() == "Beam search with 2 beams: 5 candidates, 2 pruned"


def test_a_branch_keeps_clear_of_long_labels() -> None:
    nodes = (
        node(0, None, 0, "internationalisation", best=True),
        node(1, 0, 1, "b", "ended", best=True),
    )
    tree = BeamTree(nodes, (Hypothesis([0, 1], -1.0, -0.5, True),), ("a b",), 2, 1.0)
    figure = tree.draw()
    draw_strictly(figure)
    (axes,) = figure.axes
    label, (line,) = axes.texts[0], axes.lines
    begins = axes.transData.transform((line.get_xdata()[0], 0))[0]  # type: ignore[index]
    assert label.get_text() == "internation… 0.50"
    assert label.get_window_extent().x1 < begins


def test_of_very_many_the_least_likely_are_left_out_and_counted() -> None:
    tree, note = many(100), f"{102 - MAX_LEAVES - 1} less likely candidates"
    assert {one.id for one in tree.shown()[0]} == set(range(MAX_LEAVES + 1))  # P falls with the id
    assert note in tree.draw().get_supxlabel()
    assert any(note in line for line in printed(tree.text(80)))
    assert "less likely" not in many(20).draw().get_supxlabel()


def test_a_terminal_shows_the_tree_and_why_by_letter() -> None:
    assert printed(SMALL.text(80)) == [
        "2 beams: 5 candidates, 2 pruned",
        "├──   我 0.900  log P −0.11",
        "│   ├── ■ 爱 0.500  log P −0.69",
        "│   ├── ■ $a$␣$b$ 0.250  log P −1.39",
        "│   └── ✗ x 0.200  log P −1.61  a",
        "└── ✗ <b> 0.001  log P −6.91  a",
        "a: too small",
        "score   output",
        "−0.400  我 爱",
        "−0.750  我 <b>",
    ]


def test_the_page_has_every_candidate_escaped() -> None:
    html = SMALL._repr_html_()
    assert html.count("<tr>") == 1 + 2 + 1 + 5
    assert "<td>&lt;b&gt;</td>" in html and "<td><b></td>" not in html
    assert html.count("<td>best</td>") == 2
    assert html.count("too small") == 2
    assert "<td>我 爱</td><td>−0.400</td><td>0.449</td>" in html
