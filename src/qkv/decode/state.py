"""What a search is: a state, and the three verbs start, step, finish.

Shapes: B sentences, K rows for each (beams, or independent draws), N tokens of room, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.hypothesis import Hypothesis

NONE = -1  # where there is no token


@dataclass(frozen=True)
class Task:
    """What is asked of a search, for one batch."""

    limits: Tensor  # (B,) int64: most tokens that each sentence may generate; 0: it is mere padding
    ids: Tensor  # (B,) int64: names of the sentences, to which random draws are bound
    seed: int
    newest: Tensor  # (B,) int64: the last token of each prompt, after which the search begins
    room: int  # N: no limit is larger
    seen: Tensor | None = None  # (B, V) bool: tokens of the prompts, where repeating is penalised
    past: Tensor | None = (
        None  # (B, L) int64: the prompts, NONE before; where no run may come twice
    )

    def with_room(self, room: int) -> Task:
        """The same with more room, in which prompt and output find place together."""
        past = self.past
        if past is not None:
            past = F.pad(past, (room - past.shape[1], 0), value=NONE)
        return replace(self, room=room, past=past)


@dataclass(frozen=True)
class State:
    """What every search carries from step to step: tensors alone, whose shapes never change."""

    step: Tensor  # () int64: tokens generated so far
    limits: Tensor  # (B,) int64
    done: Tensor  # (B,) bool: nothing that may still come can change the sentence's result
    newest: Tensor  # (B, K) int64: the tokens that the model reads next

    def select(self, sentences: Tensor) -> Self:
        """Keep these sentences, in this order."""
        names = [field.name for field in fields(self) if field.name != "step"]
        kept: dict[str, Any] = {name: getattr(self, name)[sentences] for name in names}
        return replace(self, **kept)

    def copy(self) -> Self:
        """The same values in tensors of their own."""
        names = [field.name for field in fields(self)]
        copies: dict[str, Any] = {name: getattr(self, name).clone() for name in names}
        return replace(self, **copies)

    def assign(self, new: Self) -> None:
        """Overwrite this state's tensors, so that a captured step finds them at the same place."""
        for field in fields(self):
            getattr(self, field.name).copy_(getattr(new, field.name))


S = TypeVar("S", bound=State)


class Search(Protocol[S]):
    """A way to search; hashable, so that a captured step can be found again by it."""

    @property
    def rows(self) -> int:
        """K: rows of the model's batch for each sentence."""

    def start(self, task: Task) -> S:
        """The state before the first token."""

    def step(self, state: S, logits: Tensor) -> tuple[S, Tensor | None]:
        """One token more, given logits (B·K, V): a pure function of tensors.

        Also tells which of the B·K rows each row goes on from; None: each from itself.
        """

    def finish(self, state: S) -> list[list[Hypothesis]]:
        """The results of each sentence, best first."""


def write(tokens: Tensor, step: Tensor, newest: Tensor) -> Tensor:
    """Put (B, K) newest tokens at place `step` of (B, K, N) tokens."""
    return tokens.index_copy(2, step.view(1), newest[..., None])


def is_one_of(tokens: Tensor, ids: tuple[int, ...]) -> Tensor:
    """Whether each token is among a few ids."""
    found = tokens == ids[0]
    for id in ids[1:]:
        found = found | (tokens == id)
    return found


def start_seen(task: Task, rows: int) -> Tensor:
    """The tokens that count as repeated, (B, K, V) bool; V is 0 where nobody asks."""
    if task.seen is None:
        return torch.zeros((len(task.limits), rows, 0), dtype=torch.bool, device=task.limits.device)
    return task.seen[:, None].expand(-1, rows, -1)


def see(seen: Tensor, newest: Tensor) -> Tensor:
    """Add (B, K) newest tokens to those seen."""
    return seen.scatter(2, newest[..., None], True) if seen.shape[2] else seen


def start_past(task: Task, rows: int) -> Tensor:
    """The prompts, in which no run may come twice, (B, K, L) int64; L is 0 where nobody asks."""
    if task.past is None:
        return task.limits.new_zeros((len(task.limits), rows, 0))
    return task.past[:, None].expand(-1, rows, -1)


def push(past: Tensor, newest: Tensor) -> Tensor:
    """Append (B, K) newest tokens to the past, which moves up: so its end needs no counting."""
    return torch.cat([past[..., 1:], newest[..., None]], dim=2) if past.shape[2] else past


def take(tensor: Tensor, index: Tensor) -> Tensor:
    """Pick along dimension 1: (B, M, …) by (B, K) to (B, K, …)."""
    index = index.view(*index.shape, *[1] * (tensor.dim() - 2))
    return torch.take_along_dim(tensor, index, dim=1)
