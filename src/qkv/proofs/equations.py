"""Proofs that the fast path computes the equation, and that no token sees the future."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from qkv.model import equation, use_path
from qkv.proofs.model_under_test import ModelUnderTest
from qkv.proofs.passes import alone, can_pack, in_rows, packed, padded
from qkv.proofs.proof import Measured, difference


def fast_path(tested: ModelUnderTest) -> Measured:
    """Compare the outputs of the fast path with those of the equation path."""
    fast = _everything(tested)
    with use_path(tested.model, equation):
        expected = _everything(tested)
    return Measured(difference(fast, expected), tested.limit)


def _everything(tested: ModelUnderTest) -> list[Tensor]:
    model, examples = tested.model, tested.examples
    if tested.sees:
        return in_rows(model, examples)
    end_to_end = packed(model, examples) if can_pack(model) else []
    return [*padded(model, examples), *end_to_end, alone(model, examples[0])]


def causal(tested: ModelUnderTest) -> Measured:
    """Replace all tokens from some position on: the logits before it must not change."""
    after_change, expected = [], []
    donors = [*tested.examples[1:], tested.examples[0]]
    for example, donor in zip(tested.examples, donors, strict=True):
        length = len(example.tokens)
        position = length // 2
        rest = (donor.tokens[::-1] * length)[: length - position]
        changed = replace(example, tokens=[*example.tokens[:position], *rest])
        after_change.append(alone(tested.model, changed)[:position])
        expected.append(alone(tested.model, example)[:position])
    return Measured(difference(after_change, expected), tested.limit)
