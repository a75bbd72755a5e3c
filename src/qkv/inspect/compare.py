"""Two traces side by side: before and after training, two prompts, two models."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.inspect.saved import SavedTrace
    from qkv.inspect.trace import Trace


@dataclass(frozen=True)
class Difference:
    """How one quantity differs; without numbers where the shapes are not the same."""

    key: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    largest: float | None = None
    mean: float | None = None
    cosine: float | None = None  # of the angle between the two, laid flat


@dataclass(frozen=True)
class Comparison:
    """Every quantity that both traces have, in the order of the formulas."""

    differences: tuple[Difference, ...]
    only_one: tuple[str, ...]  # that one of them does not have

    @property
    def largest(self) -> float:
        """The largest difference of all."""
        return max((one.largest for one in self.differences if one.largest is not None), default=0)

    def first_above(self, limit: float) -> Difference | None:
        """Where the two part: the first quantity that differs by more than `limit`."""
        found = (one for one in self.differences if one.largest is not None)
        return next((one for one in found if (one.largest or 0) > limit), None)

    def _repr_html_(self) -> str:
        from qkv.inspect.views import comparison_fragment

        return comparison_fragment(self)


def compare(one: Trace | SavedTrace, other: Trace | SavedTrace, pattern: str = "*") -> Comparison:
    """Compare what two traces have in common, one layer at a time, so that little is held."""
    names = [key for key in one if fnmatchcase(key, pattern)]
    there = set(other)  # a decoder knows its text by a second name, which does not count here
    both = [key for key in names if key in there]
    if not both:
        raise UserError(f"The two traces have no quantity like {pattern!r} in common.")
    found: list[Difference] = []
    for _, keys in groupby(both, key=lambda key: key.split(".")[:2]):
        group = list(keys)
        same = [key for key in group if one.shape(key) == other.shape(key)]
        first, second = (one.peek(same), other.peek(same)) if same else ({}, {})
        for key in group:
            shapes = (one.shape(key), other.shape(key))
            if key in same:
                found.append(_difference(key, shapes, first[key], second[key]))
            else:
                found.append(Difference(key, shapes))
    alone = [key for key in names if key not in there]
    alone += [key for key in other if fnmatchcase(key, pattern) and key not in set(one)]
    return Comparison(tuple(found), tuple(alone))


def _difference(
    key: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], one: Tensor, other: Tensor
) -> Difference:
    a, b = (x.detach().double().cpu().flatten() for x in (one, other))
    first, second = (x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) for x in (a, b))
    same = (a == b) | (a.isnan() & b.isnan())  # what may not be seen is -∞ in both
    a, b = a.masked_fill(same, 0), b.masked_fill(same, 0)
    apart = (a - b).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    if not len(apart):
        return Difference(key, shapes, 0.0, 0.0, 1.0)
    cosine = None
    if bool(apart.isfinite().all()):
        cosine = 1.0 if not apart.any() else float(F.cosine_similarity(first, second, dim=0))
    return Difference(key, shapes, float(apart.max()), float(apart.mean()), cosine)
