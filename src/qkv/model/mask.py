"""Masks: which keys a query may see, as an object that is drawn as a matrix on demand.

No other module compares positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """How sequences fill a (B, T) tensor: one in each row, or packed end to end in one row."""

    lengths: Tensor | None = None  # (B,) real tokens in each row; None: the rows are full
    offsets: Tensor | None = None  # (M+1,) packed sequence m is tokens offsets[m] … offsets[m+1]
    longest: int = 0  # packed: no sequence is longer
    first: Tensor | None = None  # (B, T) or (B, 1): the column where each token's sequence begins

    def positions(self, n_tokens: int, device: torch.device, start: int | Tensor = 0) -> Tensor:
        """Position of each token in its own sequence, (T,) or (B, T), from column `start` on."""
        column = torch.arange(n_tokens, device=device) + start
        if self.first is not None:
            return (column - self.first).clamp(min=0)  # left padding has no position
        if self.offsets is None:
            return column
        return column - self.offsets[segments(self.offsets, n_tokens)]


def segments(offsets: Tensor, n_tokens: int) -> Tensor:
    """Number of the packed sequence that each token belongs to, (N,)."""
    column = torch.arange(n_tokens, device=offsets.device, dtype=offsets.dtype)
    # Searching offsets[1:] would need no -1, but compiled code misreads a view that starts late.
    return torch.searchsorted(offsets, column, right=True) - 1


@dataclass(frozen=True)
class Mask:
    """Which keys each query may see. Drawn on demand, or handed to a kernel as flags and lengths.

    A padded causal row needs no lengths: its padding is at the end, which no real token sees.
    """

    causal: bool = False
    key_lengths: Tensor | None = None  # (B,) keys past these are padding
    query_offsets: Tensor | None = None  # (M+1,) packed: query m sees keys of segment m alone
    key_offsets: Tensor | None = None
    longest_query: int = 0
    longest_key: int = 0
    start: int | Tensor = 0  # with a cache: the first query's index among the keys; () or (B,)
    window: int = 0  # a query sees this many keys up to itself, and from itself on; 0: all
    first: Tensor | None = None  # (B, T) or (B, 1): a query sees no key before this one
    drawn: Tensor | None = None  # the boolean matrix, where it was drawn once for all layers

    @property
    def packed(self) -> bool:
        """Whether sequences are packed end to end, with offsets."""
        return self.query_offsets is not None

    @property
    def hides_nothing(self) -> bool:
        """Whether every query sees every key."""
        hides = self.causal or self.packed or self.window or self._hides_some
        return not hides and self.drawn is None

    @property
    def _hides_some(self) -> bool:
        """Whether rows hide keys of their own."""
        return self.key_lengths is not None or self.first is not None

    @property
    def may_be_blind(self) -> bool:
        """Whether a query may see no key at all; a causal one always sees itself."""
        return self.packed or self._hides_some

    @property
    def only_causal(self) -> bool:
        """Whether this is the plain lower triangle that fused kernels know by a flag."""
        from_start = isinstance(self.start, int) and self.start == 0
        return self.causal and from_start and not (self.packed or self.window or self._hides_some)

    @property
    def only_lengths(self) -> bool:
        """Whether rows hide the keys past their lengths, and nothing else."""
        others = self.causal or self.packed or self.window or self.first is not None
        return self.key_lengths is not None and not others

    def draw(self, n_queries: int, n_keys: int, device: torch.device) -> Mask:
        """Return the mask with its matrix, so that not every layer draws it, if kernels need it.

        Packed masks stay undrawn, since their kernel takes offsets. Where all queries of a row see
        the same keys, the matrix has one query.
        """
        if self.hides_nothing or self.only_causal or self.packed or self.drawn is not None:
            return self
        if not (self.causal or self.window or self.first is not None):
            n_queries = 1
        return replace(self, drawn=self.boolean(n_queries, n_keys, device))

    def boolean(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """Draw the mask: True where a query may see a key, (B or 1, 1, T, S)."""
        if self.drawn is not None:
            return self.drawn
        start = self.start
        if isinstance(start, Tensor) and start.dim():
            start = start[:, None, None]
        query = torch.arange(n_queries, device=device)[:, None] + start  # (T, 1) or (B, T, 1)
        key = torch.arange(n_keys, device=device)[None, :]  # (1, S)
        visible = (key <= query) if self.causal else torch.ones_like(key <= query)
        if self.window:
            visible = visible & (key > query - self.window) & (key < query + self.window)
        if self.query_offsets is not None and self.key_offsets is not None:
            same = segments(self.query_offsets, n_queries)[:, None] == segments(
                self.key_offsets, n_keys
            )
            visible = visible & same
        visible = visible[:, None] if visible.dim() == 3 else visible[None, None]
        if self.key_lengths is not None:
            visible = visible & (key < self.key_lengths[:, None, None, None])
        if self.first is not None:
            visible = visible & (key >= self.first[:, None, :, None])
        return visible

    def additive(
        self, n_queries: int, n_keys: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Draw the mask to be added to scores: 0 where a query may see a key, else -∞."""
        visible = self.boolean(n_queries, n_keys, device)
        return torch.zeros((), dtype=dtype, device=device).where(visible, float("-inf"))


def self_mask(layout: Layout, causal: bool, window: int = 0) -> Mask:
    """Mask of self-attention."""
    if layout.offsets is not None:
        return Mask(
            causal=causal,
            window=window,
            query_offsets=layout.offsets,
            key_offsets=layout.offsets,
            longest_query=layout.longest,
            longest_key=layout.longest,
        )
    if layout.first is not None and not causal:
        raise ValueError("Rows of several sequences are for causal stacks; pack them by offsets.")
    lengths = None if causal else layout.lengths
    return Mask(causal=causal, window=window, key_lengths=lengths, first=layout.first)


def cross_mask(queries: Layout, keys: Layout) -> Mask:
    """Mask of cross-attention: each target sees its own source."""
    if (queries.offsets is None) != (keys.offsets is None):
        raise ValueError("Queries and keys must both be packed, or neither.")
    if queries.offsets is not None:
        return Mask(
            query_offsets=queries.offsets,
            key_offsets=keys.offsets,
            longest_query=queries.longest,
            longest_key=keys.longest,
        )
    return Mask(key_lengths=keys.lengths)
