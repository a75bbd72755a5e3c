"""The whole tree of a beam search: every candidate that was looked at, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from qkv.config import DecodeConfig, ModelConfig
from qkv.decode import Beam, BeamState, Hypothesis, Task
from qkv.decode.beam import Candidates, build_beam
from qkv.decode.generate import (
    build_batch,
    build_task,
    prompt_limits,
    run_search,
    token_limits,
)
from qkv.errors import UserError
from qkv.inspect.reading import Reading
from qkv.model import Encoder, EncoderDecoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkv.inspect.trace import Trace

Fate = Literal["kept", "ended", "pruned"]


@dataclass(frozen=True)
class Node:
    """One candidate: a token after a hypothesis, and what became of it."""

    id: int
    parent: int | None  # None: it is a first token
    step: int
    token: int
    name: str
    log_probability: float  # of the token after what stands before it
    score: float  # log P of the whole hypothesis so far
    fate: Fate
    why: str
    best: bool = False  # it is part of the best hypothesis


@dataclass(frozen=True)
class BeamTree:
    """A beam search from its first token to its last."""

    nodes: tuple[Node, ...]
    outputs: tuple[Hypothesis, ...]  # as the search gives them, best first
    names: tuple[str, ...]  # their tokens, as people read them
    beams: int
    length_penalty: float

    @property
    def n_pruned(self) -> int:
        """How many candidates were looked at and left."""
        return sum(node.fate == "pruned" for node in self.nodes)

    def children(self, parent: int | None) -> list[Node]:
        """The candidates after a node, best first; those of None are the first tokens."""
        return [node for node in self.nodes if node.parent == parent]

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """A figure: steps to the right, hypotheses downwards, what was pruned in grey."""
        from qkv.inspect.views import draw_tree

        return draw_tree(self, viewer_fonts)

    def _repr_html_(self) -> str:
        from qkv.inspect.views import tree_fragment

        return tree_fragment(self)


@dataclass
class Recorder:
    """A beam search of one sentence that writes down what it looks at; it searches as `Beam`."""

    beam: Beam
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._alive: list[int | None] = [None] * self.beam.rows
        self._ended: dict[tuple[int, ...], int] = {}

    @property
    def rows(self) -> int:
        """K."""
        return self.beam.rows

    def start(self, task: Task) -> BeamState:
        """The state before the first token."""
        return self.beam.start(task)

    def step(self, state: BeamState, logits: Tensor) -> tuple[BeamState, Tensor | None]:
        """One token more, as the search itself does it."""
        found = self.beam.continuations(state, logits.clone())
        after, rows = self.beam.step(state, logits)
        assert rows is not None
        self._record(state, found, after, rows)
        return after, rows

    def finish(self, state: BeamState) -> list[list[Hypothesis]]:
        """The results."""
        return self.beam.finish(state)

    def _record(self, state: BeamState, found: Candidates, after: BeamState, rows: Tensor) -> None:
        step, before = int(state.step), state.scores[0].tolist()
        kept = list(zip(rows.tolist(), after.newest[0].tolist(), strict=True))
        alive: list[int | None] = [None] * self.rows
        last = bool(state.step + 1 >= state.limits[0])
        candidates = zip(*(column[0].tolist() for column in found), strict=True)
        for rank, (score, parent, token) in enumerate(candidates):
            if score == float("-inf"):
                continue  # a beam that has not come to life
            id = len(self.nodes)
            goes_on = (parent, token) in kept and not last and token not in self.beam.ends
            fate, why = ("kept", "") if goes_on else self._left(rank, token, last)
            self.nodes.append(
                Node(
                    id,
                    self._alive[parent],
                    step,
                    token,
                    "",
                    score - before[parent],
                    score,
                    fate,  # type: ignore[arg-type]
                    why,
                )
            )
            if goes_on:
                alive[kept.index((parent, token))] = id
            elif fate == "ended":
                self._ended[(*state.tokens[0, parent, :step].tolist(), token)] = id
        self._alive = alive
        self._displace(after)

    def _left(self, rank: int, token: int, last: bool) -> tuple[str, str]:
        """What becomes of a candidate that does not go on."""
        count = self.rows
        if token in self.beam.ends or last:
            if rank < count:
                return "ended", "" if token in self.beam.ends else "no room for more tokens"
            return "pruned", f"it ends, but is not among the {count} best candidates"
        return "pruned", f"{count} candidates that go on have a higher score"

    def _displace(self, after: BeamState) -> None:
        """Hypotheses that have ended compete: those that are not among the K best are out."""
        lengths, tokens = after.closed_lengths[0].tolist(), after.closed_tokens[0].tolist()
        held = {tuple(one[:length]) for one, length in zip(tokens, lengths, strict=True)}
        why = f"{self.rows} that have ended are better for their length"
        for ended in [one for one in self._ended if one not in held]:
            id = self._ended.pop(ended)
            self.nodes[id] = replace(self.nodes[id], fate="pruned", why=why)

    def close(self, best: list[int]) -> list[Node]:
        """All nodes when the search is over: open ones are left, and the best path is marked."""
        over = "the search was over: it could no more become better than what has ended"
        if self.beam.early_stopping is True:
            over = f"the search was over: {self.rows} had ended"
        beaten = f"none of its continuations was among the {self.rows} best"
        left, parents = {*self._alive}, {node.parent for node in self.nodes}
        nodes = [
            replace(node, fate="pruned", why=over if node.id in left else beaten)
            if node.fate == "kept" and node.id not in parents
            else node
            for node in self.nodes
        ]
        parent: int | None = None
        for token in best:
            node = next(one for one in nodes if one.parent == parent and one.token == token)
            nodes[node.id] = replace(node, best=True)
            parent = node.id
        return nodes


def beam_tree(trace: Trace, config: DecodeConfig, row: int = 0) -> BeamTree:
    """Search again after what a trace has read, and write down the way."""
    model, reading = trace.model, trace.reading
    if isinstance(model, Encoder):
        raise UserError("An encoder writes nothing, so it has no beam search to show.")
    if trace.edits:
        raise UserError("A search runs on the model as it is; ask the trace without changes.")
    beams = max(2, config.beams)
    config = replace(config, beams=beams, n_best=beams, sample=False)
    prompt = _prompt(reading, model.config, row)
    given = isinstance(model, EncoderDecoder) and prompt[1:2] == [model.config.start_id]
    recorder = Recorder(build_beam(config, model.config.ends, reading.suppress, int(given)))
    device = next(model.parameters()).device
    batch = build_batch([prompt], device)
    if isinstance(model, EncoderDecoder):
        source = _source(reading, row)
        batch = replace(batch, source=source)
        limits = token_limits(model.config, config, [source.shape[1]], len(prompt) - 1)
    else:
        limits = prompt_limits(model.config, config, [prompt])
    task = build_task(model.config, config, [prompt], limits, None, device)
    with torch.inference_mode():
        (outputs,) = run_search(model, recorder, batch, task, fixed=False, graphs=None)
    if not outputs:
        raise UserError("decode: with these settings nothing may be generated; loosen them.")
    return _tree(recorder, outputs, reading, config)


def _prompt(reading: Reading, config: ModelConfig, row: int) -> list[int]:
    if config.family == "encoder-decoder":
        return [config.bos_id, *([config.start_id] if config.start_id >= 0 else [])]
    assert reading.target is not None
    return _own(reading.target.tokens, reading.target.layout.lengths, row).tolist()


def _source(reading: Reading, row: int) -> Tensor:
    assert reading.source is not None
    return _own(reading.source.tokens, reading.source.layout.lengths, row)[None]


def _own(tokens: Tensor, lengths: Tensor | None, row: int) -> Tensor:
    return tokens[row] if lengths is None else tokens[row, : int(lengths[row])]


def _tree(
    recorder: Recorder, outputs: list[Hypothesis], reading: Reading, config: DecodeConfig
) -> BeamTree:
    nodes = recorder.close(outputs[0].tokens)
    best = [node for node in nodes if node.best]
    if outputs[0].finished:
        after = best[-1].id if best else None
        end = next(
            node
            for node in nodes
            if node.parent == after and node.fate == "ended" and node.token in recorder.beam.ends
        )
        nodes[end.id] = replace(end, best=True)
    named = reading.name([node.token for node in nodes])
    nodes = [replace(node, name=name) for node, name in zip(nodes, named, strict=True)]
    names = tuple(" ".join(reading.name(one.tokens)) for one in outputs)
    return BeamTree(tuple(nodes), tuple(outputs), names, config.beams, config.length_penalty)
