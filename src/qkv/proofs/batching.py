"""A text's result does not depend on what stands beside it."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.model import Decoder
from qkv.proofs.passes import alone, can_pack, in_one_row, in_rows, packed, padded
from qkv.proofs.proof import Measured, difference, largest
from qkv.proofs.subject import Example, Subject

TOGETHER = 3  # texts in a batch without padding


def batch(subject: Subject) -> Measured:
    """Texts of one length (or images) in a batch, and each by itself."""
    examples = subject.examples if subject.sees else level(subject.examples)
    expected = [alone(subject.model, one) for one in examples]
    return Measured(difference(in_rows(subject.model, examples), expected), subject.limit)


def padding(subject: Subject) -> Measured:
    """Texts of different lengths padded, or end to end, and each by itself."""
    model, examples = subject.model, subject.examples
    found, note = [padded(model, examples)], ""
    if can_pack(model):
        found.append(packed(model, examples))
    else:
        note = "padded only: this model's parts do not run end to end"
    if isinstance(model, Decoder):
        found.append(in_one_row(model, examples))
    expected = [alone(model, one) for one in examples]
    return Measured(largest(difference(one, expected) for one in found), subject.limit, note)


def level(examples: Sequence[Example]) -> list[Example]:
    """The longest ones, cut to one length."""
    longest = sorted(examples, key=lambda one: -len(one.tokens))[:TOGETHER]
    length, source_length = (
        min(len(text) for text in texts)
        for texts in ([one.tokens for one in longest], [one.source for one in longest])
    )
    return [one.cut(length, source_length) for one in longest]
