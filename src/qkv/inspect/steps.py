"""How each step of an output went: the best candidates, and how sure the model was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.data import IGNORE
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.inspect.trace import Trace


@dataclass(frozen=True)
class Candidate:
    """Something that might come out."""

    id: int
    name: str
    probability: float


@dataclass(frozen=True)
class Step:
    """One output: what might have come, and what did or should."""

    position: int
    after: str  # the token at which the model says it
    candidates: tuple[Candidate, ...]  # best first
    entropy: float  # in nats: 0 is certain, ln V is no idea
    label: Candidate | None  # what came, or should have come
    rank: int | None  # of the label: 1 is the best candidate


def steps(trace: Trace, k: int = 5, row: int = 0) -> list[Step]:
    """The steps of one row; a classifier has one, a tagger one for each token."""
    if "probabilities" not in trace:
        raise UserError("This model gives no probabilities; trace one that has a head for outputs.")
    if k < 1:
        raise UserError(f"k is {k}, but must be at least 1.")
    probable, names = distributions(trace, row)
    labels = _labels(trace, row, len(probable))
    found = zip(names, probable, labels, strict=True)
    return [_step(trace, place, *one, k, row) for place, one in enumerate(found)]


def distributions(trace: Trace, row: int = 0) -> tuple[Tensor, list[str]]:
    """One row's outputs (N, V), and the tokens at which they are said."""
    probable = by_output(trace, trace["probabilities"][row].float(), row)
    if trace.reading.says == "spans":
        return probable, ["start", "end"]
    if trace["probabilities"].dim() == 2:
        return probable, ["the text"]
    return probable, _said_at(trace, row)


def by_output(trace: Trace, said: Tensor, row: int) -> Tensor:
    """What is said of one row, a line an output, padding left out, (N, V)."""
    if said.dim() == 1:
        return said[None]
    said = said[: len(_said_at(trace, row))]
    return said.T if trace.reading.says == "spans" else said  # start and end choose among tokens


def _said_at(trace: Trace, row: int) -> list[str]:
    return trace.tokens("source" if trace.reading.target is None else "target", row)


def entropy(trace: Trace, probable: Tensor) -> Tensor:
    """In nats, of each line; where each class stands for itself, of all yes and no together."""
    found = torch.special.entr(probable)
    if trace.reading.says == "each":
        found = found + torch.special.entr(1 - probable)
    return found.sum(dim=-1)


def output_names(trace: Trace, ids: list[int], row: int = 0) -> list[str]:
    """What outputs are called: tokens, labels or, where an answer is looked for, places."""
    if trace.reading.says == "spans":
        tokens = trace.tokens("source", row)
        return [f"{tokens[id]} ({id})" for id in ids]
    return trace.reading.name(ids)


def _labels(trace: Trace, row: int, count: int) -> list[int]:
    labels = trace.reading.labels
    if labels is None or trace.reading.says == "each":
        return [IGNORE] * count
    return labels[row].reshape(-1)[:count].tolist()


def _step(
    trace: Trace, position: int, after: str, probable: Tensor, label: int, k: int, row: int
) -> Step:
    values, ids = probable.topk(min(k, len(probable)))
    found = zip(ids.tolist(), output_names(trace, ids.tolist(), row), values.tolist(), strict=True)
    candidates, unsure = tuple(Candidate(*one) for one in found), float(entropy(trace, probable))
    if label == IGNORE:
        return Step(position, after, candidates, unsure, None, None)
    chosen = Candidate(label, output_names(trace, [label], row)[0], float(probable[label]))
    rank = 1 + int((probable > probable[label]).sum())
    return Step(position, after, candidates, unsure, chosen, rank)
