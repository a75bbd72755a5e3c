"""States of a search as trees of tensors: what kind they are, and how one is copied into another.

A step that was recorded on one state serves every state of its kind, copied into its memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")


def leaves(state: Any) -> Iterator[Tensor]:
    """Yield the tensors of a dataclass, field by field, those of its parts included."""
    if isinstance(state, Tensor):
        yield state
    elif is_dataclass(state):
        for field in fields(state):
            yield from leaves(getattr(state, field.name))


def kind(state: Any) -> Hashable:
    """Describe shapes, dtypes, and all values that are not tensors."""
    if isinstance(state, Tensor):
        return (state.shape, state.dtype)
    if is_dataclass(state):
        return tuple(kind(getattr(state, field.name)) for field in fields(state))
    assert isinstance(state, Hashable)
    return state


def cloned(state: S) -> S:
    """Copy a state, tensors included."""
    if isinstance(state, Tensor):
        return state.clone()  # type: ignore[return-value]
    if is_dataclass(state) and not isinstance(state, type):
        copies = {field.name: cloned(getattr(state, field.name)) for field in fields(state)}
        return replace(state, **copies)
    return state


def assign(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors into the memory of others, in one call for each dtype."""
    for dtype in {tensor.dtype for tensor in targets}:
        pairs = [
            (target, source)
            for target, source in zip(targets, sources, strict=True)
            if target.dtype == dtype
        ]
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])
