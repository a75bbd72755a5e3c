"""The inputs of one traced pass: token ids with their names, labels, and what the logits mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from qkv.batching import pad_rows
from qkv.config import DecodeConfig, Pooling
from qkv.data import IGNORE
from qkv.model import Layout

Namer = Callable[[Sequence[int]], list[str]]
"""Gives ids their names: tokens or labels."""

OutputKind = Literal["tokens", "class", "classes", "number", "span", "none"]
"""What the logits choose: a next or masked token, one class, each class by itself, a number, the
first and last token of an answer; or there are none."""


SIDES = {"encoder": "source", "decoder": "target"}
"""What each stack reads."""


def numbered(ids: Sequence[int]) -> list[str]:
    """Name ids of an unknown vocabulary by their numbers."""
    return [f"#{id}" for id in ids]


@dataclass(frozen=True)
class Side:
    """What an encoder (source) or a decoder (target) reads: one sequence per row."""

    tokens: Tensor  # (B, N) ids, or an image's pixels (B, channels, height, width)
    names: tuple[tuple[str, ...], ...]  # of each row's tokens, padding included
    layout: Layout = field(default_factory=Layout)

    @classmethod
    def pad(
        cls, rows: Sequence[Sequence[int]], pad_id: int, name: Namer, device: torch.device
    ) -> Side:
        """Pad rows of token ids at the end to one length."""
        longest = max(map(len, rows))
        lengths = torch.tensor([len(ids) for ids in rows], device=device)
        names = tuple((*name(ids), *[""] * (longest - len(ids))) for ids in rows)
        full = min(map(len, rows)) == longest
        return cls(pad_rows(rows, pad_id).to(device), names, Layout(None if full else lengths))

    @property
    def length(self) -> int:
        """N: tokens in a row, padding included; image patches count as tokens."""
        return len(self.names[0])

    def row_length(self, row: int) -> int:
        """Number of a row's tokens without padding."""
        lengths = self.layout.lengths
        return self.length if lengths is None else int(lengths[row])

    def row_tokens(self, row: int) -> Tensor:
        """A row's token ids without padding, or its pixels."""
        tokens = self.tokens[row]
        return tokens[: self.row_length(row)] if tokens.dim() == 1 else tokens

    def row_names(self, row: int) -> tuple[str, ...]:
        """Names of a row's tokens without padding."""
        return self.names[row][: self.row_length(row)]

    def repeat_row(self, row: int, count: int) -> Side:
        """Copy one row `count` times, without padding."""
        tokens = self.row_tokens(row)
        # Cloned, since tensors made in inference mode cannot take part in gradients.
        return Side(tokens.expand(count, *tokens.shape).clone(), (self.row_names(row),) * count)


@dataclass(frozen=True)
class Inputs:
    """Everything that goes into one pass of a model."""

    source: Side | None = None  # what an encoder reads
    target: Side | None = None  # what a decoder reads: Y_shift
    labels: Tensor | None = None  # expected outputs, IGNORE where none is expected
    segments: Tensor | None = None  # (B, S): which of two texts a token belongs to
    output_kind: OutputKind = "tokens"
    pooling: Pooling = "mean"  # of an encoder without a head
    name: Namer = numbered  # names of the outputs, each by itself
    spell: Namer | None = None  # names of tokens in a row, where several may be one character
    decode: DecodeConfig = field(default_factory=DecodeConfig)  # the model's own decoding settings
    suppress: tuple[int, ...] = ()  # tokens that are never generated
    prompt: tuple[int, ...] = ()  # what an encoder-decoder's output begins with; (): BOS

    @property
    def sides(self) -> dict[str, Side]:
        """The sides that are read, by name, source first."""
        sides = {"source": self.source, "target": self.target}
        return {name: side for name, side in sides.items() if side is not None}

    @property
    def n_rows(self) -> int:
        """B: number of sequences."""
        return len(next(iter(self.sides.values())).tokens)

    def repeat_row(self, row: int, count: int) -> Inputs:
        """Copy one row `count` times, without padding and labels."""
        sides: dict[str, Any] = {x: side.repeat_row(row, count) for x, side in self.sides.items()}
        segments = self.segments
        if segments is not None:
            length = sides["source"].length
            segments = segments[row : row + 1, :length].expand(count, -1).clone()
        return replace(self, **sides, labels=None, segments=segments)


def pad_labels(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Pad rows of labels with IGNORE to one length."""
    return pad_rows(rows, IGNORE).to(device)
