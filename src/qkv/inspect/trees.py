"""Drawing the tree of a beam search: steps to the right, a line of type for each way out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from qkv.inspect.fonts import drawable, visible
from qkv.inspect.maps import clipped
from qkv.inspect.style import caption, new_figure, styled
from qkv.inspect.tree import BeamTree, Node

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES = 56  # leaves beyond which only what was nearly kept is drawn
TYPE = 7.5  # points
BEST, KEPT, ENDED, PRUNED = "#0072B2", "#444444", "#009E73", "#999999"
SIGNS = {"kept": " ", "ended": "■", "pruned": "✗"}


def shown(tree: BeamTree) -> tuple[list[Node], int]:
    """What is drawn, and how many are left out: of pruned candidates, those least likely."""
    parents = {node.parent for node in tree.nodes}
    ways = [node for node in tree.nodes if node.best or node.id in parents or node.fate == "ended"]
    drawn = {node.id for node in ways}
    others = [node for node in tree.nodes if node.id not in drawn]
    others.sort(key=lambda node: -node.log_probability)
    room = max(0, LINES - sum(node.id not in parents for node in ways))
    kept = sorted([*ways, *others[:room]], key=lambda node: node.id)
    return kept, len(tree.nodes) - len(kept)


def heights(nodes: Sequence[Node]) -> dict[int, float]:
    """A line for each leaf from the top down; what has children stands at their middle."""
    children: dict[int | None, list[Node]] = {}
    for node in nodes:
        children.setdefault(node.parent, []).append(node)
    found: dict[int, float] = {}
    line = 0

    def place(node: Node) -> float:
        nonlocal line
        below = [place(child) for child in children.get(node.id, ())]
        if not below:
            line += 1
        found[node.id] = sum(below) / len(below) if below else float(1 - line)
        return found[node.id]

    for root in children.get(None, ()):
        place(root)
    return found


def draw_tree(tree: BeamTree, viewer_fonts: bool = False) -> Figure:
    """The best way in blue, ended hypotheses in green, what was pruned in grey and dashed."""
    nodes, left_out = shown(tree)
    lines, steps = heights(nodes), 1 + max(node.step for node in nodes)
    names, note = drawable([clipped(visible(node.name), 12) for node in nodes], viewer_fonts)
    labels = [_label(node, name) for node, name in zip(nodes, names, strict=True)]
    wide = 0.55 + max(map(cell_len, labels)) * TYPE * 0.62 / 72  # inches: a label and its branch
    depth = -min(lines.values())
    title = (
        f"Beam search with {tree.beams} beams: {len(tree.nodes)} candidates, {tree.n_pruned} pruned"
    )
    with styled():
        figure, axes = new_figure(max(6.0, wide * (steps + 0.4)), max(2.4, 0.2 * depth + 1.4))
        axes.set(xlim=(-0.3, steps + 0.1), ylim=(-depth - 1, 1), xlabel="step")
        axes.set_yticks([])
        axes.set_xticks(range(steps))
        axes.grid(False)
        axes.spines["left"].set_visible(False)
        for node, label in zip(nodes, labels, strict=True):
            _node(axes, node, label, lines, 0.5 / wide)
        rest = (
            f"{left_out} less likely candidates that were pruned are not drawn." if left_out else ""
        )
        about = "Number: probability of the token after what stands before it. ■ ended."
        caption(figure, title, " ".join(filter(None, [about, rest, note])))
    return figure


def _label(node: Node, name: str) -> str:
    chance = math.exp(node.log_probability)
    number = f"{chance:.2f}" if chance >= 0.005 else "<0.01"
    return f"{name} {number}{' ■' if node.fate == 'ended' else ''}"


def _node(axes: Axes, node: Node, label: str, lines: dict[int, float], branch: float) -> None:
    """A candidate, and the branch that leads to it, which begins where its parent's label ends."""
    x, y = node.step, lines[node.id]
    colour = BEST if node.best else {"ended": ENDED, "kept": KEPT, "pruned": PRUNED}[node.fate]
    if node.parent in lines:
        dashed: dict[str, Any] = {"linestyle": (0, (2, 2))} if node.fate == "pruned" else {}
        places = [x - branch, x - 0.55 * branch, x - 0.12 * branch]
        axes.plot(
            places,
            [lines[node.parent], y, y],
            color=colour,
            zorder=1,
            linewidth=2.2 if node.best else 0.9,
            **dashed,
        )
    weight = "bold" if node.best else "normal"
    axes.text(
        x, y, label, color=colour, va="center", fontsize=TYPE, weight=weight, parse_math=False
    )


def terminal_tree(tree: BeamTree) -> Group:
    """The tree for a terminal, and below it, by letter, why candidates did not go on."""
    nodes, left_out = shown(tree)
    reasons = list(dict.fromkeys(node.why for node in nodes if node.why))
    root = Tree(f"{tree.beams} beams, {len(tree.nodes)} candidates, {tree.n_pruned} pruned")
    branches: dict[int | None, Tree] = {None: root}
    for node in nodes:
        style = "bold blue" if node.best else {"ended": "green", "pruned": "dim"}.get(node.fate, "")
        label = Text(f"{SIGNS[node.fate]} {clipped(visible(node.name), 16)} ", style=style)
        chance = math.exp(node.log_probability)
        number = f"{chance:.3f}" if chance >= 0.0005 else "<0.001"
        label.append(f"{number}  log P {node.score:.2f}", style="dim")
        if node.why:
            label.append(f"  {_letter(reasons.index(node.why))}", style="dim italic")
        branches[node.id] = branches[node.parent].add(label)
    notes = [f"{_letter(place)}: {why}" for place, why in enumerate(reasons)]
    if left_out:
        notes.append(f"{left_out} less likely candidates that were pruned are not shown")
    return Group(root, *(Text(note, style="dim") for note in notes))


def _letter(place: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[place]


def tree_rows(tree: BeamTree) -> list[tuple[str, ...]]:
    """Every candidate as a row of a table: where it stands, what it is, and what became of it."""
    return [
        (
            str(node.step),
            "" if node.parent is None else visible(tree.nodes[node.parent].name),
            visible(node.name),
            f"{math.exp(node.log_probability):.3f}",
            f"{node.score:.3f}",
            "best" if node.best else node.fate,
            node.why,
        )
        for node in tree.nodes
    ]
