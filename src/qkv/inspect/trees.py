"""Drawing the tree of a beam search: steps to the right, a line of type for each way out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
BEST, KEPT, ENDED, PRUNED = "#0072B2", "#444444", "#009E73", "#999999"
SIGNS = {"kept": " ", "ended": "■", "pruned": "✗"}


def shown(tree: BeamTree) -> tuple[list[Node], int]:
    """What is drawn, and how many are left out: of pruned candidates, those least likely."""
    ways = [node for node in tree.nodes if node.best or tree.children(node.id)]
    ways += [node for node in tree.nodes if node.fate == "ended" and node not in ways]
    others = [node for node in tree.nodes if node not in ways]
    others.sort(key=lambda node: -node.log_probability)
    room = max(0, LINES - sum(not tree.children(node.id) for node in ways))
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
    depth = -min(lines.values())
    title = (
        f"Beam search with {tree.beams} beams: {len(tree.nodes)} candidates, {tree.n_pruned} pruned"
    )
    with styled():
        figure, axes = new_figure(max(6.0, 1.35 * steps + 1), max(2.4, 0.2 * depth + 1.4))
        axes.set(xlim=(-0.3, steps + 0.1), ylim=(-depth - 1, 1), xlabel="step")
        axes.set_yticks([])
        axes.set_xticks(range(steps))
        axes.grid(False)
        axes.spines["left"].set_visible(False)
        for node, name in zip(nodes, names, strict=True):
            _node(axes, node, name, lines)
        rest = (
            f"{left_out} less likely candidates that were pruned are not drawn." if left_out else ""
        )
        about = "Number: probability of the token after what stands before it. ■ ended."
        caption(figure, title, " ".join(filter(None, [about, rest, note])))
    return figure


def _node(axes: Axes, node: Node, name: str, lines: dict[int, float]) -> None:
    x, y = node.step, lines[node.id]
    colour = BEST if node.best else {"ended": ENDED, "kept": KEPT, "pruned": PRUNED}[node.fate]
    if node.parent in lines:
        dashed: dict[str, Any] = {"linestyle": (0, (2, 2))} if node.fate == "pruned" else {}
        start = lines[node.parent]
        axes.plot([x - 0.38, x - 0.22, x - 0.05], [start, y, y], color=colour, zorder=1,
                  linewidth=2.2 if node.best else 0.9, **dashed)  # fmt: skip
    label = f"{name} {math.exp(node.log_probability):.2f}{' ■' if node.fate == 'ended' else ''}"
    weight = "bold" if node.best else "normal"
    axes.text(x, y, label, color=colour, va="center", fontsize=7.5, weight=weight,
              parse_math=False)  # fmt: skip


def terminal_tree(tree: BeamTree) -> Tree:
    """The tree for a terminal: the ways that were kept, and beside each what was pruned there."""
    root = Tree(f"beam search, {tree.beams} beams: {len(tree.nodes)} candidates")
    branches: dict[int | None, Tree] = {None: root}
    for node in tree.nodes:
        if node.parent not in branches:
            continue
        style = "bold blue" if node.best else {"ended": "green", "pruned": "dim"}.get(node.fate, "")
        label = Text(f"{SIGNS[node.fate]} {visible(node.name)} ", style=style)
        label.append(f"{math.exp(node.log_probability):.3f}  log P {node.score:.2f}", style="dim")
        if node.why:
            label.append(f"  {node.why}", style="dim italic")
        branches[node.id] = branches[node.parent].add(label)
    return root


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
