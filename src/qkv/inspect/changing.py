"""A change on the way: which part of a quantity becomes what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.notation import Quantity
from qkv.inspect.probe import Edit

To = Tensor | float | Callable[[Tensor], Tensor]
"""A value, or a function of the value that was there."""


def edit_of(quantity: Quantity, to: To, part: tuple[Any, ...]) -> Edit:
    """The edit that puts a value into a part of a quantity, and leaves the rest as it was."""

    def changed(value: Tensor) -> Tensor:
        new, old = value.clone(), value[part]
        given = to(old) if callable(to) else torch.as_tensor(to)
        if not _fits(given, old):
            raise UserError(
                f"{quantity.key}: a value of shape {tuple(given.shape)} cannot stand for one "
                f"of shape {tuple(old.shape)}; give that shape."
            )
        new[part] = given.to(value)
        return new

    return Edit(quantity.key, changed)


def part_of(
    quantity: Quantity, head: int | None, positions: Sequence[int] | None, sizes: Mapping[str, int]
) -> tuple[Any, ...]:
    """The index of a head's and some tokens' part of a quantity."""
    index: list[Any] = [slice(None)] * len(quantity.axes)
    if head is not None:
        index[1] = slice(head, head + 1)
    if positions is not None:
        tokens = [place for place, letter in enumerate(quantity.axes) if letter in ("S", "T")]
        if not tokens:
            raise UserError(f"{quantity.key} has no tokens; change it without positions.")
        count = sizes[quantity.axes[tokens[0]]]
        for place in positions:
            if not -count <= place < count:
                raise UserError(f"{quantity.key} has no token {place}: it has {count}, from 0 on.")
        index[tokens[0]] = list(positions)
    return tuple(index)


def _fits(given: Tensor, old: Tensor) -> bool:
    try:
        return torch.broadcast_shapes(given.shape, old.shape) == old.shape
    except RuntimeError:
        return False
