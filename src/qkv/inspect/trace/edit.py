"""Changes of a pass: which part of a quantity is replaced by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.trace.notation import Quantity

Replacement = Tensor | float | Callable[[Tensor], Tensor]
"""A new value, or a function of the old value."""

Index = tuple[Any, ...]
"""Which part of a tensor is meant, one entry a dimension."""


@dataclass(frozen=True, eq=False)
class Edit:
    """A change of one quantity, which everything computed after it sees."""

    key: str
    change: Callable[[Tensor], Tensor]


def replace_part(
    quantity: Quantity, part: Index, replacement: Replacement, renormalise: bool = False
) -> Edit:
    """Build the edit that replaces the part of a quantity at an index."""

    def change(value: Tensor) -> Tensor:
        new, old = value.clone(), value[part]
        given = replacement(old) if callable(replacement) else torch.as_tensor(replacement)
        if not isinstance(given, Tensor):
            raise UserError(
                f"{quantity.key}: the function returned {given!r}, but must return a tensor; end "
                f"it with `return`."
            )
        if not _broadcasts(given, old):
            raise UserError(
                f"{quantity.key}: a value of shape {tuple(given.shape)} cannot replace one of "
                f"shape {tuple(old.shape)}; give that shape."
            )
        new[part] = given.to(value)
        return _renormalised(new, part) if renormalise else new

    return Edit(quantity.key, change)


def _renormalised(weights: Tensor, part: Index) -> Tensor:
    """Scale the other weights of each changed row so that the row sums to 1."""
    changed = torch.zeros_like(weights, dtype=torch.bool)
    changed[part] = True
    given = weights.where(changed, 0.0).sum(dim=-1, keepdim=True)
    others = weights.where(~changed, 0.0)
    total = others.sum(dim=-1, keepdim=True)
    share = ((1 - given).clamp(min=0.0) / total.where(total > 0, 1.0)).where(
        changed.any(dim=-1, keepdim=True), 1.0
    )
    return weights.where(changed, others * share)


def part_index(
    quantity: Quantity,
    head: int | None,
    positions: Sequence[int] | None,
    sizes: Mapping[str, int],
    keys: Sequence[int] | None = None,
) -> Index:
    """Index of one head, of some token positions and of some attended tokens in a quantity."""
    index: list[Any] = [slice(None)] * len(quantity.axes)
    if head is not None:
        index[1] = slice(head, head + 1)
    axis = quantity.token_axis
    if positions is not None:
        if axis is None:
            raise UserError(f"{quantity.key} has no tokens; change it without positions.")
        _check_positions(quantity, positions, sizes[quantity.axes[axis]])
        index[axis] = torch.tensor(positions)
    if keys is not None:
        if axis is None or quantity.axes[-1] not in ("S", "T") or axis == len(quantity.axes) - 1:
            raise UserError(
                f"{quantity.key} has no attended tokens; give `keys` for scores, weights or masks."
            )
        _check_positions(quantity, keys, sizes[quantity.axes[-1]])
        index[-1] = torch.tensor(keys)
        if positions is not None:
            index[axis] = index[axis][:, None]  # every pair of the two
    return tuple(index)


def _check_positions(quantity: Quantity, positions: Sequence[int], count: int) -> None:
    for position in positions:
        if not -count <= position < count:
            raise UserError(f"{quantity.key} has no token {position}; it has {count}, from 0 on.")


def _broadcasts(given: Tensor, old: Tensor) -> bool:
    try:
        return torch.broadcast_shapes(given.shape, old.shape) == old.shape
    except RuntimeError:
        return False
