"""What the page asks of a model: an action's outputs, quantities of its pass, a cell in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.answers.steps import Prediction
from qkv.inspect.trace.trace import Trace
from qkv.serve.page.actions import Done
from qkv.serve.page.blocks import encode_blocks, pool_cells
from qkv.serve.page.traces import Ask, traced, untouched

MAX_VALUES = 8_000_000  # in one response


class AnswerAsk(Ask):
    """An action with the candidates of each output.

    `keys` are computed in the same pass, so that a `/trace` of them is answered at once.
    """

    top: int = Field(5, ge=1, le=50)
    keys: list[str] = Field(default_factory=list, max_length=512)


class TraceAsk(Ask):
    """Quantities of a pass, as they are or one row per token (`lanes`).

    `cells` pools the last dimension by means; `difference` subtracts the unchanged pass.
    """

    keys: list[str] = Field(min_length=1, max_length=512)
    head: int | None = None
    lanes: bool = False
    cells: int = Field(0, ge=0, le=4096)
    difference: bool = False
    precision: Literal["float16", "float32"] = "float16"


def answer(task: Any, ask: AnswerAsk) -> dict[str, Any]:
    """Do an action; give its text and the candidates of each output, before and after changes."""
    done = untouched(task, ask)
    changed = traced(task, ask) if ask.changes else None
    trace = done.trace
    return {
        "action": ask.action,
        "text": done.text,
        "marks": done.marks,
        "tokens": {side: trace.tokens(side) for side in trace.inputs.sides},
        "outputs": _outputs(done, trace, ask),
        "changed": None if changed is None else _outputs(done, changed, ask),
    }


def _outputs(done: Done, trace: Trace, ask: AnswerAsk) -> list[dict[str, Any]]:
    """Candidates of the outputs that make up the answer; the last one, where none is labelled."""
    if "probabilities" not in trace:
        return []
    if ask.keys:
        trace.many(_checked(trace, ["probabilities", *ask.keys], None))
    top = ask.top
    steps = trace.steps(top)
    wanted = done.positions
    if wanted is None:
        wanted = [step.position for step in steps if step.label is not None]
        wanted = wanted or [len(steps) - 1]
    found = [prediction(steps[position]) for position in wanted if position < len(steps)]
    for one, name in zip(found, done.names, strict=False):
        one["after"] = name
    return found


def prediction(step: Prediction) -> dict[str, Any]:
    """A step as JSON; `output` is the label, or the best candidate where there is none."""
    output = step.label or step.candidates[0]
    return {
        "position": step.position,
        "after": step.after,
        "output": asdict(output),
        "rank": step.rank,
        "entropy": step.entropy,
        "candidates": list(map(asdict, step.candidates)),
    }


def quantities(task: Any, ask: TraceAsk) -> bytes:
    """Quantities of a pass as binary blocks."""
    trace = traced(task, ask)
    values = _values(trace, ask.keys, ask.head, ask.lanes)
    if ask.difference:
        plain = _values(untouched(task, ask).trace, ask.keys, ask.head, ask.lanes)
        values = {key: value - plain[key] for key, value in values.items()}
    own = {key: _own(value, trace.axes(key)).float() for key, value in values.items()}
    if ask.lanes:
        own = {key: as_lanes(value, trace.axes(key)) for key, value in own.items()}
    pooled = {key: pool_cells(value, ask.cells) for key, value in own.items()}
    about = {
        "tokens": {side: trace.tokens(side) for side in trace.inputs.sides},
        "axes": {key: [letter for letter in trace.axes(key) if letter != "B"] for key in pooled},
    }
    return encode_blocks(pooled, about, ask.precision)


def _own(value: Tensor, axes: Sequence[str]) -> Tensor:
    """The only row of a batch; what has no rows is as it is."""
    return value[0] if axes[:1] == ("B",) else value


def as_lanes(value: Tensor, axes: Sequence[str]) -> Tensor:
    """One row per token: heads side by side, or the mean of their scores and weights."""
    axes = [letter for letter in axes if letter != "B"]
    if axes[:1] in (["H"], ["G"], ["1"]) and value.dim() == 3:
        between_tokens = axes[2] in ("S", "T")
        return value.mean(dim=0) if between_tokens else value.transpose(0, 1).flatten(1)
    return value.reshape(-1, value.shape[-1]) if value.dim() else value.reshape(1, 1)


def _values(
    trace: Trace, keys: Sequence[str], head: int | None, of_queries: bool
) -> dict[str, Any]:
    """Compute the quantities; a head is asked of those that have heads.

    `of_queries`: the head counts queries, so that grouped keys and values are those it looks at.
    """
    matching = _checked(trace, keys, head)
    by_head = [key for key in matching if head is not None and trace.find(key).has_heads]
    values = trace.many([key for key in matching if key not in by_head])
    groups: dict[int | None, list[str]] = {}  # so that one pass serves many keys
    for key in by_head:
        own = _own_head(trace, key, head) if of_queries else head
        groups.setdefault(own, []).append(key)
    for own, group in groups.items():
        values |= trace.many(group, own)
    return values


def _checked(trace: Trace, keys: Sequence[str], head: int | None) -> list[str]:
    """Keys that patterns stand for, if they are known and not too much is asked for."""
    matching = [name for key in keys for name in (trace.names(key) if "*" in key else [key])]
    for key in matching:
        trace.find(key)
    count = sum(_n_values(trace, key, head) for key in matching)
    if count > MAX_VALUES:
        raise UserError(
            f"These quantities have {count:,} values, but at most {MAX_VALUES:,} are sent at once; "
            "ask for fewer, or for one head."
        )
    return matching


def _own_head(trace: Trace, key: str, head: int | None) -> int | None:
    """The head of keys and values that a head of queries looks at, where these are grouped."""
    if head is None or trace.axes(key)[1] != "G" or not 0 <= head < trace.sizes["H"]:
        return head
    return head * trace.sizes["G"] // trace.sizes["H"]


def _n_values(trace: Trace, key: str, head: int | None) -> int:
    shape = trace.shape(key)
    return math.prod(shape) // (shape[1] if head is not None and trace.find(key).has_heads else 1)
