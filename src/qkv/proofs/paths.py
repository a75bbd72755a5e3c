"""What a model computes, and what it may see."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from qkv.model import equation, use_path
from qkv.proofs.passes import alone, can_pack, in_rows, packed, padded
from qkv.proofs.proof import Measured, difference
from qkv.proofs.subject import Subject


def fast_path(subject: Subject) -> Measured:
    """Everything once as the model runs by itself, and once as the equation is written."""
    found = _everything(subject)
    with use_path(subject.model, equation):
        expected = _everything(subject)
    return Measured(difference(found, expected), subject.limit)


def _everything(subject: Subject) -> list[Tensor]:
    model, examples = subject.model, subject.examples
    if subject.sees:
        return in_rows(model, examples)
    end_to_end = packed(model, examples) if can_pack(model) else []
    return [*padded(model, examples), *end_to_end, alone(model, examples[0])]


def causal(subject: Subject) -> Measured:
    """Other tokens from some place on: the logits before that place stay as they were."""
    found, expected = [], []
    others = [*subject.examples[1:], subject.examples[0]]
    for one, other in zip(subject.examples, others, strict=True):
        place = len(one.tokens) // 2
        rest = (other.tokens[::-1] * len(one.tokens))[: len(one.tokens) - place]
        changed = replace(one, tokens=[*one.tokens[:place], *rest])
        found.append(alone(subject.model, changed)[:place])
        expected.append(alone(subject.model, one)[:place])
    return Measured(difference(found, expected), subject.limit)
