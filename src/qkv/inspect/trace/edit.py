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


@dataclass(frozen=True, eq=False)
class Edit:
    """A change of one quantity, which everything computed after it sees."""

    key: str
    change: Callable[[Tensor], Tensor]


def replace_part(quantity: Quantity, part: tuple[Any, ...], replacement: Replacement) -> Edit:
    """Build the edit that replaces the part of a quantity at an index."""

    def change(value: Tensor) -> Tensor:
        new, old = value.clone(), value[part]
        given = replacement(old) if callable(replacement) else torch.as_tensor(replacement)
        if not _broadcasts(given, old):
            raise UserError(
                f"{quantity.key}: a value of shape {tuple(given.shape)} cannot replace one of "
                f"shape {tuple(old.shape)}; give that shape."
            )
        new[part] = given.to(value)
        return new

    return Edit(quantity.key, change)


def part_index(
    quantity: Quantity, head: int | None, positions: Sequence[int] | None, sizes: Mapping[str, int]
) -> tuple[Any, ...]:
    """Index of one head and of some token positions in a quantity."""
    index: list[Any] = [slice(None)] * len(quantity.axes)
    if head is not None:
        index[1] = slice(head, head + 1)
    if positions is not None:
        axis = quantity.token_axis
        if axis is None:
            raise UserError(f"{quantity.key} has no tokens; change it without positions.")
        count = sizes[quantity.axes[axis]]
        for position in positions:
            if not -count <= position < count:
                raise UserError(
                    f"{quantity.key} has no token {position}; it has {count}, from 0 on."
                )
        index[axis] = list(positions)
    return tuple(index)


def _broadcasts(given: Tensor, old: Tensor) -> bool:
    try:
        return torch.broadcast_shapes(given.shape, old.shape) == old.shape
    except RuntimeError:
        return False
