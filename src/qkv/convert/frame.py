"""The special tokens around a text or a pair, as a model reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Frame:
    """before A after, or before A between B after; with segments, the second text has kind 1."""

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    segments: bool = False
