"""Proofs that a text's result does not depend on the rest of its batch."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.model import Decoder
from qkv.proofs.model_under_test import Example, ModelUnderTest
from qkv.proofs.passes import alone, can_pack, in_one_row, in_rows, packed, padded
from qkv.proofs.proof import Measured, difference, largest

TOGETHER = 3  # texts in a batch without padding


def batch(tested: ModelUnderTest) -> Measured:
    """Texts of one length (or images) in a batch, and each by itself."""
    examples = tested.examples if tested.sees else level(tested.examples)
    expected = [alone(tested.model, example) for example in examples]
    return Measured(difference(in_rows(tested.model, examples), expected), tested.limit)


def padding(tested: ModelUnderTest) -> Measured:
    """Texts of different lengths padded, or end to end, and each by itself."""
    model, examples = tested.model, tested.examples
    layouts, note = [padded(model, examples)], ""
    if can_pack(model):
        layouts.append(packed(model, examples))
    else:
        note = "padded only: this model's parts do not run end to end"
    if isinstance(model, Decoder):
        layouts.append(in_one_row(model, examples))
    expected = [alone(model, example) for example in examples]
    apart = largest(difference(outputs, expected) for outputs in layouts)
    return Measured(apart, tested.limit, note)


def level(examples: Sequence[Example]) -> list[Example]:
    """The longest examples, cut to one length."""
    longest = sorted(examples, key=lambda example: -len(example.tokens))[:TOGETHER]
    length = min(len(example.tokens) for example in longest)
    source_length = min(len(example.source) for example in longest)
    return [example.cut(length, source_length) for example in longest]
