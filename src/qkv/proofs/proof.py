"""The result of a proof, and how far two outputs lie apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Proof:
    """One row of the table: what was compared, the largest difference, and whether it passed."""

    name: str
    meaning: str  # what it tells a user, in a sentence
    difference: float | None  # the largest; None where nothing could be measured
    limit: float
    passed: bool | None  # None: there is nothing to prove of this model, and the note says why
    note: str = ""


class Measured(NamedTuple):
    """The result of a row; without a difference, the note says what is wrong."""

    difference: float | None
    limit: float
    note: str = ""


class NotApplicableError(Exception):
    """A row has nothing to prove of this model; the message says why."""


def largest(values: Iterable[float]) -> float:
    """The largest of some differences; NaN where one is, which Python's own `max` may pass over."""
    return float(torch.tensor(list(values), dtype=torch.float64).max())


def difference(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest |output - expected|, over the root mean square of all expected values.

    So it does not matter whether a model's logits are about 1 or about 100.
    """
    for output, wanted in zip(outputs, expected, strict=True):
        if output.shape != wanted.shape:
            raise ValueError(f"{tuple(output.shape)} is compared with {tuple(wanted.shape)}")
    ours, theirs = (
        torch.cat([tensor.double().flatten().cpu() for tensor in tensors])
        for tensors in (outputs, expected)
    )
    scale = theirs.square().mean().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    return float((ours - theirs).abs().max() / scale)
