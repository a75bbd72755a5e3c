"""What a proof says, and how far two results lie apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Proof:
    """One row of the table: what was compared, how far it lies apart, and whether that will do."""

    name: str
    meaning: str  # what it tells a user, in a sentence
    difference: float | None  # the largest; None where nothing could be measured
    limit: float
    passed: bool | None  # None: there is nothing to prove of this model, and the note says why
    note: str = ""


class Measured(NamedTuple):
    """What a row has found; without a difference, something is wrong that the note tells."""

    difference: float | None
    limit: float
    note: str = ""


class NotApplicableError(Exception):
    """There is nothing to prove of this model, and this is why."""


def largest(values: Iterable[float]) -> float:
    """The largest of some differences; NaN where one is, which Python's own `max` may pass over."""
    return float(torch.tensor(list(values), dtype=torch.float64).max())


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest |found - expected|, over the root mean square of all that is expected.

    So it does not matter whether a model's logits are about 1 or about 100.
    """
    for one, other in zip(found, expected, strict=True):
        if one.shape != other.shape:
            raise ValueError(f"{tuple(one.shape)} is compared with {tuple(other.shape)}")
    one, other = (
        torch.cat([x.double().flatten().cpu() for x in each]) for each in (found, expected)
    )
    scale = other.square().mean().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    return float((one - other).abs().max() / scale)
