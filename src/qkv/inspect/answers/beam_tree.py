"""The tree of a beam search: every candidate, and whether it was kept, ended or pruned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree
from torch import Tensor

from qkv.config import DecodeConfig
from qkv.decode import Engine, Generative, Hypothesis, Request
from qkv.decode.beam import BeamSearch
from qkv.decode.request import BeamStep, Handle, prompt_limits, token_limits
from qkv.errors import UserError
from qkv.inspect.answers.answer import Answer, Question, View, the_trace
from qkv.inspect.draw.labels import clipped, decimal, visible
from qkv.inspect.draw.language import localized, localized_each
from qkv.inspect.draw.style import INK, QUERY, VALUE, caption, new_figure
from qkv.inspect.draw.table import Table
from qkv.inspect.trace.inputs import Inputs
from qkv.inspect.trace.trace import Trace
from qkv.model import Decoder, Encoder, EncoderDecoder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Fate = Literal["kept", "ended", "pruned"]
LogitsAfter = Callable[[Sequence[int]], Tensor]
"""Gives the logits (V,) after a prompt and the tokens of a hypothesis."""
MAX_LEAVES = 56  # drawn; of more, the least likely pruned candidates are left out
MAX_LENGTH = 12  # tokens that the view lets a language model go on for
TYPE = 7.5  # points
COLOURS = {"best": QUERY, "kept": INK, "ended": VALUE, "pruned": "#999999"}
SIGNS = {"kept": " ", "ended": "■", "pruned": "✗"}


# Why a candidate does not go on.
NO_ROOM = "no room for more tokens"
ENDS_TOO_LOW = "it ends, but is not among the {beams} best candidates"
TOO_LOW = "{beams} candidates that go on have a higher score"
DISPLACED = "{beams} that have ended are better for their length"
OVER = "the search was over: it could not become better than what has ended"
OVER_EARLY = "the search was over: {beams} had ended"
BEATEN = "none of its continuations was among the {beams} best"
REASONS = (NO_ROOM, ENDS_TOO_LOW, TOO_LOW, DISPLACED, OVER, OVER_EARLY, BEATEN)


@dataclass(frozen=True)
class Node:
    """One candidate: a token after a hypothesis, and what became of it."""

    id: int
    parent: int | None  # None: a first token
    step: int
    token: int
    name: str
    log_probability: float  # of the token after the hypothesis
    score: float  # log P of the whole hypothesis
    fate: Fate
    why: str
    best: bool = False  # part of the best hypothesis

    @property
    def colour(self) -> str:
        """Its colour in a figure."""
        return COLOURS["best" if self.best else self.fate]


@dataclass(frozen=True)
class BeamTree(Answer):
    """A beam search from its first token to its last."""

    nodes: tuple[Node, ...]
    outputs: tuple[Hypothesis, ...]  # of the search, best first
    names: tuple[str, ...]  # their tokens
    beams: int
    length_penalty: float

    @property
    def n_pruned(self) -> int:
        """Number of pruned candidates."""
        return sum(node.fate == "pruned" for node in self.nodes)

    def children(self, parent: int | None) -> list[Node]:
        """Candidates after a node, best first; those of None are the first tokens."""
        return [node for node in self.nodes if node.parent == parent]

    def shown(self) -> tuple[list[Node], str]:
        """The nodes to draw, and a note about the pruned candidates that are left out."""
        parents = {node.parent for node in self.nodes}
        ways = [x for x in self.nodes if x.best or x.id in parents or x.fate == "ended"]
        drawn = {node.id for node in ways}
        others = [node for node in self.nodes if node.id not in drawn]
        others.sort(key=lambda node: -node.log_probability)
        room = max(0, MAX_LEAVES - sum(node.id not in parents for node in ways))
        nodes = sorted([*ways, *others[:room]], key=lambda node: node.id)
        left_out = len(self.nodes) - len(nodes)
        note = "{count} less likely candidates that were pruned are not shown."
        return nodes, localized(note, count=left_out) if left_out else ""

    def figure(self) -> Figure:
        """Draw the best path in blue, ended hypotheses in green, pruned candidates in grey."""
        nodes, left_out = self.shown()
        lines, steps = _heights(nodes), 1 + max(node.step for node in nodes)
        labels = [_label(node) for node in nodes]
        wide = 0.55 + max(map(cell_len, labels)) * TYPE * 0.62 / 72  # inches: a label, a branch
        depth = -min(lines.values())
        figure, axes = new_figure(max(6.0, wide * (steps + 0.4)), max(2.4, 0.2 * depth + 1.4))
        axes.set(xlim=(-0.3, steps + 0.1), ylim=(-depth - 1, 1), xlabel=localized("step"))
        axes.set_yticks([])
        axes.set_xticks(range(steps))
        axes.grid(False)
        axes.spines["left"].set_visible(False)
        for node, label in zip(nodes, labels, strict=True):
            _draw_node(axes, node, label, lines, 0.5 / wide)
        about = "Number: probability of the token after the hypothesis before it. ■ ended."
        title = localized("Beam search with {summary}", summary=self._summary())
        caption(figure, title, localized(about), left_out)
        return figure

    def parts(self) -> list[Table]:
        """The outputs, and every candidate."""
        outputs = [
            (name, decimal(output.score, ".3f"), f"{math.exp(output.log_probability):.3g}")
            for name, output in zip(self.names, self.outputs, strict=True)
        ]
        candidates = [
            (
                str(node.step),
                "" if node.parent is None else visible(self.nodes[node.parent].name),
                visible(node.name),
                f"{math.exp(node.log_probability):.3f}",
                decimal(node.score, ".3f"),
                localized("best" if node.best else node.fate),
                self.reason(node),
            )
            for node in self.nodes
        ]
        head = localized_each("step", "after", "token", "P", "log P of all", "fate", "why")
        title = localized("Beam search with {beams} beams", beams=self.beams)
        return [
            Table(localized_each("output", "score", "P"), outputs, title),
            Table(head, candidates, localized("Every candidate")),
        ]

    def numbers(self) -> Any:
        """Return every field, with the outputs' tokens as text."""
        outputs = [
            {"tokens": name, "score": x.score, "log_probability": x.log_probability}
            for name, x in zip(self.names, self.outputs, strict=True)
        ]
        return super().numbers() | {"outputs": outputs}

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield the tree, the reasons for pruning by letter, and the outputs."""
        nodes, left_out = self.shown()
        reasons = dict.fromkeys(self.reason(node) for node in nodes if node.why)
        letters = dict(zip(reasons, "abcdefghijklmnopqrstuvwxyz", strict=False))
        root = Tree(self._summary())
        branches: dict[int | None, Tree] = {None: root}
        for node in nodes:
            style = {"ended": "green", "pruned": "dim"}.get(node.fate, "")
            style = "bold blue" if node.best else style
            label = Text(f"{SIGNS[node.fate]} {clipped(visible(node.name), 16)} ", style=style)
            chance = math.exp(node.log_probability)
            number = f"{chance:.3f}" if chance >= 0.0005 else "<0.001"
            label.append(f"{number}  log P {decimal(node.score)}", style="dim")
            if node.why:
                label.append(f"  {letters[self.reason(node)]}", style="dim italic")
            branches[node.id] = branches[node.parent].add(label)
        yield root
        for note in [*(f"{letter}: {why}" for why, letter in letters.items()), left_out]:
            if note:
                yield Text(note, style="dim")
        outputs = zip(self.names, self.outputs, strict=True)
        rows = [(decimal(output.score, ".3f"), name) for name, output in outputs]
        yield from Table(localized_each("score", "output"), rows).text(width)

    def reason(self, node: Node) -> str:
        """Why a candidate does not go on, in the current language."""
        said = (reason for reason in REASONS if reason.format(beams=self.beams) == node.why)
        return localized(next(said, node.why), beams=self.beams)

    def _summary(self) -> str:
        summary = "{beams} beams: {count} candidates, {pruned} pruned"
        counts = {"count": len(self.nodes), "pruned": self.n_pruned}
        return localized(summary, beams=self.beams, **counts)


class TreeBuilder:
    """Makes the nodes of a tree from the steps of a search."""

    def __init__(self, request: Request) -> None:
        self.request, self.beams = request, request.beams
        self.nodes: list[Node] = []
        self._open: list[int | None] = [None] * self.beams  # nodes of the open hypotheses
        self._paths: list[tuple[int, ...]] = [()] * self.beams  # their tokens
        self._scores = [0.0] * self.beams
        self._ended: dict[tuple[int, ...], int] = {}

    def add(self, step: BeamStep) -> None:
        """Add a step's candidates."""
        number = 0 if not self.nodes else self.nodes[-1].step + 1
        last = number + 1 >= self.request.limit
        after: dict[int, int] = {}
        for rank, (score, parent, token) in enumerate(step.candidates):
            if score == float("-inf"):
                continue  # of a beam that is not in use yet
            id = len(self.nodes)
            goes_on = (parent, token) in step.kept and not last and token not in self.request.ends
            fate, why = self._fate(rank, token, last, goes_on)
            chance = score - self._scores[parent]
            node = Node(id, self._open[parent], number, token, "", chance, score, fate, why)
            self.nodes.append(node)
            if goes_on:
                after[step.kept.index((parent, token))] = id
            elif fate == "ended":
                self._ended[(*self._paths[parent], token)] = id
        self._paths = [(*self._paths[parent], token) for parent, token in step.kept]
        self._open = [after.get(beam) for beam in range(self.beams)]
        opened = [None if id is None else self.nodes[id] for id in self._open]
        self._scores = [0.0 if node is None else node.score for node in opened]
        self._displace(step)

    def _fate(self, rank: int, token: int, last: bool, goes_on: bool) -> tuple[Fate, str]:
        """What becomes of a candidate, and why."""
        if goes_on:
            return "kept", ""
        count, is_end = self.beams, token in self.request.ends
        if is_end or last:
            if rank < count:
                return "ended", "" if is_end else NO_ROOM
            return "pruned", ENDS_TOO_LOW.format(beams=count)
        return "pruned", TOO_LOW.format(beams=count)

    def _displace(self, step: BeamStep) -> None:
        """Prune ended hypotheses that are no longer among the best of their kind."""
        why = DISPLACED.format(beams=self.beams)
        for ended in [path for path in self._ended if path not in step.ended]:
            id = self._ended.pop(ended)
            self.nodes[id] = replace(self.nodes[id], fate="pruned", why=why)

    def close(self, best: Hypothesis) -> list[Node]:
        """Return all nodes after the search: open ones are pruned, the best path is marked."""
        stops_early = self.request.rules.early_stopping is True
        over = (OVER_EARLY if stops_early else OVER).format(beams=self.beams)
        beaten = BEATEN.format(beams=self.beams)
        left, parents = {*self._open}, {node.parent for node in self.nodes}
        nodes = [
            replace(node, fate="pruned", why=over if node.id in left else beaten)
            if node.fate == "kept" and node.id not in parents
            else node
            for node in self.nodes
        ]
        parent: int | None = None
        for token in best.tokens:
            node = next(x for x in nodes if x.parent == parent and x.token == token)
            nodes[node.id], parent = replace(node, best=True), node.id
        if best.finished:
            ends = [x for x in nodes if x.parent == parent and x.fate == "ended"]
            end = next(node for node in ends if node.token in self.request.ends)
            nodes[end.id] = replace(end, best=True)
        return nodes


def beam_tree(
    trace: Trace, config: DecodeConfig, row: int = 0, logits_after: LogitsAfter | None = None
) -> BeamTree:
    """Search on from a trace's inputs and record every candidate.

    `logits_after` takes the place of the model.
    """
    model, inputs = trace.model, trace.inputs
    if isinstance(model, Encoder):
        raise UserError("An encoder writes nothing, so it has no beam search to show.")
    if trace.edits and logits_after is None:
        raise UserError("A search runs on the unchanged model; ask the trace without changes.")
    beams = max(2, config.beams)
    config = replace(config, beams=beams, n_best=beams, sample=False)
    request = _request(model, inputs, config, row)
    if logits_after is None:
        (handle,) = Engine(model, fixed=False).run([request])
    else:
        handle = _search(request, model, logits_after)
    outputs = handle.hypotheses
    if not outputs:
        raise UserError("decode: with these settings nothing may be generated; loosen them.")
    tree = TreeBuilder(handle.request)
    for step in handle.steps:
        tree.add(step)
    nodes = tree.close(outputs[0])
    named = inputs.name([node.token for node in nodes])
    nodes = [replace(node, name=name) for node, name in zip(nodes, named, strict=True)]
    names = tuple(" ".join(inputs.name(output.tokens)) for output in outputs)
    return BeamTree(tuple(nodes), tuple(outputs), names, config.beams, config.length_penalty)


def _search(request: Request, model: Generative, logits_after: LogitsAfter) -> Handle:
    """Run a beam search whose logits a function gives, hypothesis by hypothesis."""
    device = next(model.parameters()).device
    search, handle = BeamSearch(request.beams, model.config.vocab_size, device), Handle(request)
    search.change([], [handle])
    while not handle.is_done:
        state = search.state.state
        step = int(state.step)
        paths = [(*request.prompt, *tokens[:step]) for tokens in state.tokens[0].tolist()]
        logits = {path: logits_after(path) for path in set(paths)}
        search.state.advance(torch.stack([logits[path] for path in paths])[None].float())
        search.collect(search.state.report.tolist())
    return handle


def _request(model: Generative, inputs: Inputs, config: DecodeConfig, row: int) -> Request:
    own, source = model.config, list[int]()
    prompt: list[int]
    if isinstance(model, EncoderDecoder):
        assert inputs.source is not None
        source = inputs.source.row_tokens(row).tolist()
        start = [own.start_id] if own.start_id >= 0 else []
        prompt = [*inputs.prompt] or [own.bos_id, *start]
        (limit,) = token_limits(own, config, [len(source)], len(prompt) - 1)
    else:
        assert inputs.target is not None
        prompt = inputs.target.row_tokens(row).tolist()
        (limit,) = prompt_limits(own, config, [prompt])
    return Request(
        tuple(prompt),
        limit,
        own.ends,
        config,
        tuple(source),
        tuple(inputs.suppress),
        n_given=len(prompt) - 1 if source else 0,
        record=True,
    )


def _heights(nodes: Sequence[Node]) -> dict[int, float]:
    """Give each leaf a line from the top down, and each parent the middle of its children."""
    children: dict[int | None, list[Node]] = {}
    for node in nodes:
        children.setdefault(node.parent, []).append(node)
    heights: dict[int, float] = {}
    line = 0

    def place(node: Node) -> float:
        nonlocal line
        below = [place(child) for child in children.get(node.id, ())]
        if not below:
            line += 1
        heights[node.id] = sum(below) / len(below) if below else float(1 - line)
        return heights[node.id]

    for root in children.get(None, ()):
        place(root)
    return heights


def _label(node: Node) -> str:
    chance = math.exp(node.log_probability)
    number = f"{chance:.2f}" if chance >= 0.005 else "<0.01"
    return f"{clipped(visible(node.name), 12)} {number}{' ■' if node.fate == 'ended' else ''}"


def _draw_node(axes: Axes, node: Node, label: str, lines: dict[int, float], branch: float) -> None:
    """Draw a candidate and the branch that leads to it from the end of its parent's label."""
    x, y = node.step, lines[node.id]
    if node.parent in lines:
        axes.plot(
            [x - branch, x - 0.55 * branch, x - 0.12 * branch],
            [lines[node.parent], y, y],
            color=node.colour,
            zorder=1,
            linewidth=2.2 if node.best else 0.9,
            linestyle=(0, (2, 2)) if node.fate == "pruned" else "-",
        )
    style: dict[str, Any] = {"color": node.colour, "weight": "bold" if node.best else "normal"}
    axes.text(x, y, label, va="center", fontsize=TYPE, parse_math=False, **style)


def _answer(question: Question) -> BeamTree:
    """Search as the model decodes; a language model goes on for a few tokens."""
    trace = the_trace(question)
    settings: dict[str, Any] = {} if question.beams is None else {"beams": question.beams}
    if isinstance(trace.model, Decoder):
        settings["max_length"] = min(trace.inputs.decode.max_length or MAX_LENGTH, MAX_LENGTH)
        remark = "beam: the search stops after {count} tokens"
        question.remark(localized(remark, count=settings["max_length"]))
    return trace.beam_tree(**settings)


def _lack(question: Question) -> str | None:
    trace = the_trace(question)
    if isinstance(trace.model, Encoder):
        return "An encoder writes nothing, so it has no beam search; look at its attention."
    if trace.edits:
        return "A search runs on the unchanged model; leave out --silence and --patch."
    full = trace.sizes["T"] >= trace.model.config.max_length
    if isinstance(trace.model, Decoder) and full:
        return "The text fills the model's context, so a search cannot go on; shorten it."
    return None


VIEW = View(
    "Beam search",
    "Every candidate of a search: kept, ended or pruned.",
    _answer,
    _lack,
)
