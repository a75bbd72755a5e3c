"""How each step of an output went: the best candidates, and how sure the model was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.reading import IGNORE

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
    probable, names, places = distributions(trace, row)
    labels = _labels(trace, row, len(probable))
    return [
        _step(trace, number, names[number], place, one, label, k)
        for number, (place, one, label) in enumerate(zip(places, probable, labels, strict=True))
    ]


def distributions(trace: Trace, row: int = 0) -> tuple[Tensor, list[str], list[int]]:
    """One row's outputs (N, V), the tokens at which they are said, and where these stand."""
    probable = trace["probabilities"][row].float()
    if trace.reading.says == "spans":  # start and end choose among tokens
        return probable.T, ["start", "end"], [0, 1]
    if probable.dim() == 1:
        return probable[None], ["the text"], [0]
    side = "source" if trace.reading.target is None else "target"
    names = trace.tokens(side, row)
    return probable[: len(names)], names, list(range(len(names)))


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
    trace: Trace, number: int, after: str, position: int, probable: Tensor, label: int, k: int
) -> Step:
    values, ids = probable.topk(min(k, len(probable)))
    found = zip(ids.tolist(), output_names(trace, ids.tolist()), values.tolist(), strict=True)
    candidates = tuple(Candidate(*one) for one in found)
    entropy = float(torch.special.entr(probable).sum())
    if label == IGNORE:
        return Step(position, after, candidates, entropy, None, None)
    chosen = Candidate(label, output_names(trace, [label])[0], float(probable[label]))
    rank = 1 + int((probable > probable[label]).sum())
    return Step(position, after, candidates, entropy, chosen, rank)
