"""Two traces side by side: before and after training, two prompts, two models."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch.nn.functional as F
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.draw.page import piece
from qkv.inspect.draw.table import Table
from qkv.inspect.trace.notation import Quantities


@dataclass(frozen=True)
class Difference:
    """How one quantity differs; without numbers where the shapes differ."""

    key: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    largest: float | None = None
    mean: float | None = None
    cosine: float | None = None  # between the two as flat vectors


@dataclass(frozen=True)
class Comparison:
    """Every quantity that both traces have, in the order of the formulas."""

    differences: tuple[Difference, ...]
    only_one: tuple[str, ...]  # keys that one of them does not have

    @property
    def largest(self) -> float:
        """The largest difference of all."""
        return max((x.largest for x in self.differences if x.largest is not None), default=0)

    def first_above(self, limit: float) -> Difference | None:
        """The first quantity that differs by more than `limit`."""
        return next((x for x in self.differences if (x.largest or 0) > limit), None)

    def _repr_html_(self) -> str:
        rows = [
            (x.key, "shapes differ", *(" × ".join(map(str, shape)) for shape in x.shapes))
            if x.largest is None
            else (x.key, f"{x.largest:.3g}", f"{x.mean:.3g}", _cosine(x.cosine))
            for x in self.differences
        ]
        head = ("quantity", "largest difference", "mean", "cosine")
        return str(piece("fragment", Table(head, rows).html()))


def compare(one: Quantities, other: Quantities, pattern: str = "*") -> Comparison:
    """Compare the common quantities of two traces layer by layer, so that few are in memory."""
    ours, theirs = (trace.names(pattern) for trace in (one, other))
    both = [key for key in ours if key in set(theirs)]
    if not both:
        raise UserError(f"The two traces have no quantity like {pattern!r} in common.")
    differences: list[Difference] = []
    for _, keys in groupby(both, key=lambda key: key.split(".")[:2]):
        shapes = {key: (one.shape(key), other.shape(key)) for key in keys}
        same = [key for key, (first, second) in shapes.items() if first == second]
        values = (one.peek(same), other.peek(same)) if same else ({}, {})
        for key in shapes:
            numbers = _differences(values[0][key], values[1][key]) if key in same else ()
            differences.append(Difference(key, shapes[key], *numbers))
    return Comparison(tuple(differences), tuple(sorted({*ours} ^ {*theirs})))


def _differences(one: Tensor, other: Tensor) -> tuple[float, float, float | None]:
    """Largest and mean absolute difference, and the cosine."""
    a, b = (x.detach().double().cpu().flatten() for x in (one, other))
    first, second = (x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) for x in (a, b))
    same = (a == b) | (a.isnan() & b.isnan())  # masked scores are −∞ in both
    a, b = a.masked_fill(same, 0), b.masked_fill(same, 0)
    apart = (a - b).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    if not apart.any():
        return 0.0, 0.0, 1.0
    finite = bool(apart.isfinite().all())
    cosine = float(F.cosine_similarity(first, second, dim=0)) if finite else None
    return float(apart.max()), float(apart.mean()), cosine


def _cosine(cosine: float | None) -> str:
    return "" if cosine is None else f"{cosine:.5f}"
