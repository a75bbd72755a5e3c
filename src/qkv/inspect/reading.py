"""What a traced model is given to read, with a name for each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from qkv.config import DecodeConfig
from qkv.data import IGNORE
from qkv.model import Layout

Names = tuple[tuple[str, ...], ...]  # of the tokens of each row, padding included

Says = Literal["tokens", "classes", "each", "number", "spans", "nothing"]
"""What logits are about: a next or hidden token, one class of several, each class by itself,
a number, where an answer starts and ends; or there are none."""


def unnamed(ids: Sequence[int]) -> list[str]:
    """Names of tokens whose vocabulary nobody knows."""
    return [f"#{id}" for id in ids]


@dataclass(frozen=True)
class Side:
    """One sequence a row: tokens (B, N), how they lie, and what people call them."""

    tokens: Tensor  # (B, N) ids, or an image's pixels (B, channels, height, width)
    names: Names
    layout: Layout = field(default_factory=Layout)

    @property
    def length(self) -> int:
        """N: tokens in a row, padding included; patches count as tokens."""
        return len(self.names[0])

    def length_of(self, row: int) -> int:
        """How many of a row's tokens are real."""
        lengths = self.layout.lengths
        return self.length if lengths is None else int(lengths[row])

    def names_of(self, row: int) -> tuple[str, ...]:
        """What the real tokens of a row are called."""
        return self.names[row][: self.length_of(row)]


@dataclass(frozen=True)
class Reading:
    """Everything that goes into one pass of a model."""

    source: Side | None = None  # what an encoder reads
    target: Side | None = None  # what a decoder reads: Y_shift
    labels: Tensor | None = None  # what should come out, IGNORE where nothing is asked
    segments: Tensor | None = None  # (B, S): which of two texts a token belongs to
    says: Says = "tokens"
    pooling: Literal["mean", "first"] = "mean"  # of an encoder without a head
    name: Callable[[Sequence[int]], list[str]] = unnamed  # what logits are logits of
    decode: DecodeConfig = field(default_factory=DecodeConfig)  # how the model decodes by itself
    suppress: tuple[int, ...] = ()  # tokens that are never generated

    @property
    def n_rows(self) -> int:
        """B."""
        side = self.source or self.target
        assert side is not None
        return len(side.tokens)


def repeated(reading: Reading, row: int, count: int) -> Reading:
    """One row of a reading, `count` times over, without padding; labels are left out."""

    def side(one: Side | None) -> Side | None:
        if one is None:
            return None
        own = one.tokens[row : row + 1]
        own = own[:, : one.length_of(row)] if own.dim() == 2 else own
        # Copied, for what was laid out in inference mode knows no gradients.
        return Side(own.expand(count, *own.shape[1:]).clone(), (one.names_of(row),) * count)

    segments = reading.segments
    source = side(reading.source)
    if segments is not None and source is not None:
        segments = segments[row : row + 1, : source.length].expand(count, -1).clone()
    return replace(
        reading, source=source, target=side(reading.target), labels=None, segments=segments
    )


def lay(
    rows: Sequence[Sequence[int]],
    padding: int,
    name: Callable[[Sequence[int]], list[str]],
    device: torch.device,
) -> Side:
    """Token ids of several lengths as one side, padded at the end."""
    longest = max(map(len, rows))
    tokens = torch.full((len(rows), longest), padding)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    lengths = torch.tensor([len(ids) for ids in rows], device=device)
    full = min(map(len, rows)) == longest
    names = tuple((*name(ids), *[""] * (longest - len(ids))) for ids in rows)
    return Side(tokens.to(device), names, Layout(None if full else lengths))


def lay_labels(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Labels of several lengths as one tensor, IGNORE where a row has ended."""
    labels = torch.full((len(rows), max(map(len, rows))), IGNORE)
    for row, ids in zip(labels, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return labels.to(device)
