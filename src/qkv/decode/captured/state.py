"""The search protocol: a state, and the three verbs start, step, finish.

Shapes: B sentences, K rows for each (beams, or independent samples), N output tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.hypothesis import Hypothesis

NONE = -1  # no token


@dataclass(frozen=True)
class Task:
    """The input of a search, for one batch."""

    limits: Tensor  # (B,) int64: most tokens that each sentence may generate; 0: padding
    ids: Tensor  # (B,) int64: numbers of the sentences, for random draws
    seed: int
    newest: Tensor  # (B,) int64: the last token of each prompt
    room: int  # N: no limit is larger
    seen: Tensor | None = None  # (B, V) bool: tokens of the prompts, for the repetition penalty
    past: Tensor | None = None  # (B, L) int64: the prompts, left-padded by NONE, for no_repeat

    def with_room(self, room: int) -> Task:
        """Return a copy with more room, for prompt and output together."""
        past = self.past
        if past is not None:
            past = F.pad(past, (room - past.shape[1], 0), value=NONE)
        return replace(self, room=room, past=past)


@dataclass(frozen=True)
class State:
    """What every search carries from step to step: tensors of fixed shapes."""

    step: Tensor  # () int64: tokens generated so far
    limits: Tensor  # (B,) int64
    done: Tensor  # (B,) bool: no further token can change the sentence's result
    newest: Tensor  # (B, K) int64: the tokens that the model reads next

    def select(self, sentences: Tensor) -> Self:
        """Keep these sentences, in this order."""
        names = [field.name for field in fields(self) if field.name != "step"]
        kept: dict[str, Any] = {name: getattr(self, name)[sentences] for name in names}
        return replace(self, **kept)

    def copy(self) -> Self:
        """Return a copy in new tensors."""
        names = [field.name for field in fields(self)]
        copies: dict[str, Any] = {name: getattr(self, name).clone() for name in names}
        return replace(self, **copies)

    def assign(self, new: Self) -> None:
        """Overwrite this state's tensors, so that a captured step finds them at their addresses."""
        for field in fields(self):
            getattr(self, field.name).copy_(getattr(new, field.name))


S = TypeVar("S", bound=State)


class Search(Protocol[S]):
    """A search algorithm; hashable, so that captured steps can be looked up by it."""

    @property
    def rows(self) -> int:
        """K: rows of the model's batch for each sentence."""

    def start(self, task: Task) -> S:
        """Return the state before the first token."""

    def step(self, state: S, logits: Tensor) -> tuple[S, Tensor | None]:
        """Add one token, given logits (B·K, V): a pure function of tensors.

        Also returns the parent of each of the B·K rows; None: each row is its own.
        """

    def finish(self, state: S) -> list[list[Hypothesis]]:
        """Return the results of each sentence, best first."""


def write(tokens: Tensor, step: Tensor, newest: Tensor) -> Tensor:
    """Put (B, K) newest tokens at index `step` of (B, K, N) tokens."""
    return tokens.index_copy(2, step.view(1), newest[..., None])


def is_one_of(tokens: Tensor, ids: tuple[int, ...]) -> Tensor:
    """Whether each token is among a few ids."""
    is_among = tokens == ids[0]
    for id in ids[1:]:
        is_among = is_among | (tokens == id)
    return is_among


def start_seen(task: Task, rows: int) -> Tensor:
    """Return the tokens that count as repeated, (B, K, V) bool; V is 0 without the penalty."""
    if task.seen is None:
        return torch.zeros((len(task.limits), rows, 0), dtype=torch.bool, device=task.limits.device)
    return task.seen[:, None].expand(-1, rows, -1)


def see(seen: Tensor, newest: Tensor) -> Tensor:
    """Add (B, K) newest tokens to those seen."""
    return seen.scatter(2, newest[..., None], True) if seen.shape[2] else seen


def start_past(task: Task, rows: int) -> Tensor:
    """Return the prompts for no_repeat, (B, K, L) int64; L is 0 without it."""
    if task.past is None:
        return task.limits.new_zeros((len(task.limits), rows, 0))
    return task.past[:, None].expand(-1, rows, -1)


def push(past: Tensor, newest: Tensor) -> Tensor:
    """Append (B, K) newest tokens to the past and drop the oldest."""
    return torch.cat([past[..., 1:], newest[..., None]], dim=2) if past.shape[2] else past


def take(tensor: Tensor, index: Tensor) -> Tensor:
    """Select along dimension 1: (B, M, …) by (B, K) to (B, K, …)."""
    index = index.view(*index.shape, *[1] * (tensor.dim() - 2))
    return torch.take_along_dim(tensor, index, dim=1)
