"""The tree of a beam search as it is drawn: a line a way, the best one marked, the rest counted."""

import io
import math

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from qkv.decode import Hypothesis
from qkv.inspect import fonts
from qkv.inspect.tree import BeamTree, Fate, Node
from qkv.inspect.trees import BEST, ENDED, LINES, PRUNED, draw_tree, heights, shown, terminal_tree
from qkv.inspect.views import tree_fragment
from tests.inspect.conftest import make_trace
from tests.inspect.test_maps import draw_strictly


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
def test_no_two_leaves_share_a_line_and_parents_stand_amid_their_children(family: str) -> None:
    tree = make_trace(family).beam_tree(beams=3, max_length=6)
    nodes, _ = shown(tree)
    found = heights(nodes)
    assert found.keys() == {one.id for one in nodes}
    leaves = [found[one.id] for one in nodes if not any(one.id == other.parent for other in nodes)]
    assert sorted(leaves) == [float(-n) for n in range(len(leaves) - 1, -1, -1)]
    for one in nodes:
        below = [found[other.id] for other in nodes if other.parent == one.id]
        if below:
            assert found[one.id] == pytest.approx(sum(below) / len(below))
    # and at one step nothing stands on anything else
    spots = [(one.step, found[one.id]) for one in nodes]
    assert len({*spots}) == len(spots)


def test_the_best_way_is_coloured_and_every_candidate_has_its_probability() -> None:
    figure = draw_tree(SMALL, viewer_fonts=True)
    assert texts(figure) == {
        "我 0.90": BEST,
        "<b> <0.01": PRUNED,
        "爱 0.50 ■": BEST,
        "$a$␣$b$ 0.25 ■": ENDED,
        "x 0.20": PRUNED,
    }
    assert lines(figure.axes[0]) == [BEST, ENDED, PRUNED]
    assert figure.axes[0].lines[2].is_dashed()
    assert figure.get_suptitle() == "Beam search with 2 beams: 5 candidates, 2 pruned"


def test_a_branch_keeps_clear_of_long_labels() -> None:
    nodes = (
        node(0, None, 0, "internationalisation", best=True),
        node(1, 0, 1, "b", "ended", best=True),
    )
    figure = draw_tree(BeamTree(nodes, (Hypothesis([0, 1], -1.0, -0.5, True),), ("a b",), 2, 1.0))
    draw_strictly(figure)
    (axes,) = figure.axes
    label, (line,) = axes.texts[0], axes.lines
    begins = axes.transData.transform((line.get_xdata()[0], 0))[0]  # type: ignore[index]
    assert label.get_text() == "internation… 0.50"
    assert label.get_window_extent().x1 < begins


def test_chinese_without_a_font_draws_no_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "chinese_font", lambda: None)
    figure = draw_tree(SMALL)
    assert {"⟨1⟩ 0.90", "⟨2⟩ 0.50 ■"} <= texts(figure).keys()
    assert "U+6211" in figure.get_supxlabel()
    draw_strictly(figure)


def test_of_very_many_the_least_likely_are_left_out_and_counted() -> None:
    tree = many(100)
    nodes, left_out = shown(tree)
    assert (len(nodes), left_out) == (LINES + 1, 102 - LINES - 1)
    assert {one.id for one in nodes} == set(range(LINES + 1))  # P falls with the id
    assert f"{left_out} less likely" in draw_tree(tree).get_supxlabel()
    assert shown(many(20))[1] == 0
    assert "less likely" not in draw_tree(many(20)).get_supxlabel()
    assert f"{left_out} less likely candidates" in printed(tree)


def printed(tree: BeamTree) -> str:
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(terminal_tree(tree))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_a_terminal_shows_the_tree_and_why_by_letter() -> None:
    assert printed(SMALL).splitlines() == [
        "2 beams, 5 candidates, 2 pruned",
        "├──   我 0.900  log P -0.11",
        "│   ├── ■ 爱 0.500  log P -0.69",
        "│   ├── ■ $a$␣$b$ 0.250  log P -1.39",
        "│   └── ✗ x 0.200  log P -1.61  a",
        "└── ✗ <b> 0.001  log P -6.91  a",
        "a: too small",
    ]


def test_the_page_has_every_candidate_escaped() -> None:
    html = tree_fragment(SMALL)
    assert html.count("<tr>") == 1 + 2 + 1 + 5
    assert "<td>&lt;b&gt;</td>" in html and "<td><b></td>" not in html
    assert html.count("<td>best</td>") == 2
    assert html.count("too small") == 2
    assert "<td>我 爱</td><td>-0.400</td><td>0.449</td>" in html
