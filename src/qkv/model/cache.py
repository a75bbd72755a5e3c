"""The KV cache: keys and values of the tokens so far, in one tensor of fixed shape."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.model.mask import Layout, Mask


@dataclass
class Cache:
    """Keys and values of every layer, and how many positions are filled.

    With `length` as a Python int, attention gets just the filled part: least work, shapes that
    grow. With a tensor, it gets the whole buffer and the mask hides the rest: one shape for every
    step, so that a step can be compiled once or captured as a graph.
    """

    store: Tensor  # (layers, 2, B, G, L, D/H)
    length: int | Tensor
    first: Tensor | None = None  # (B, 1): first position of each row, if prompts are left-padded

    @classmethod
    def empty(
        cls, config: ModelConfig, rows: int, length: int, like: Tensor, fixed: bool = False
    ) -> Cache:
        """Allocate `length` positions in each of `rows` rows, with dtype and device of `like`."""
        shape = (config.n_decoder_layers, 2, rows, config.kv_heads, length, config.d_head)
        filled = torch.zeros((), dtype=torch.int64, device=like.device) if fixed else 0
        return cls(like.new_zeros(shape), filled)

    def layer(self, index: int) -> LayerCache:
        """Return one layer's view, which it reads and extends."""
        return LayerCache(self.store[index, 0], self.store[index, 1], self.length)

    def n_keys(self, n_new: int) -> int:
        """Number of keys that attention gets once `n_new` tokens are written."""
        return self.store.shape[4] if isinstance(self.length, Tensor) else self.length + n_new

    def mask(self, n_new: int, window: int) -> Mask:
        """Mask of the next `n_new` tokens over the cached ones and one another."""
        if n_new == 1 and not window and self.first is None and not self.is_fixed:
            return Mask()  # the newest token sees all of a growing cache
        return Mask(causal=True, start=self.length, window=window, first=self.first)

    @property
    def is_fixed(self) -> bool:
        """Whether attention always gets the whole buffer."""
        return isinstance(self.length, Tensor)

    def positions(self, n_new: int, longest: int) -> Tensor:
        """Position of each of `n_new` tokens in its sequence, (T,) or (B, T); below `longest`."""
        layout = Layout(first=self.first)
        positions = layout.positions(n_new, self.store.device, self.length)
        # Finished rows continue beside the others, past the end.
        return positions if self.first is None else positions.clamp(max=longest - 1)

    def key_positions(self, n_new: int) -> Tensor:
        """Position of each key that attention gets, (S,) or (B, S)."""
        return Layout(first=self.first).positions(self.n_keys(n_new), self.store.device)

    def advance(self, n_tokens: int) -> None:
        """Count the tokens that every layer has now written."""
        if isinstance(self.length, Tensor):
            self.length.add_(n_tokens)
        else:
            self.length += n_tokens

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be repeated."""
        if self.first is not None:
            self.first = self.first[rows]
        if isinstance(self.length, Tensor):
            self.store.copy_(self.store.index_select(2, rows))
            return
        filled = self.store[..., : self.length, :].index_select(2, rows)
        if len(rows) != self.store.shape[2]:
            n_layers, two, _, *rest = self.store.shape
            self.store = self.store.new_zeros((n_layers, two, len(rows), *rest))
        self.store[..., : self.length, :] = filled

    def follow(self, rows: Tensor) -> None:
        """Reorder rows after a beam step: row i becomes its parent row."""
        if isinstance(self.length, Tensor):
            self.store.copy_(self.store.index_select(2, rows))
            return
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
        filled = self.store[..., : self.length, :]
        filled[:, :, moved] = filled[:, :, rows[moved]]  # a row that stays needs no copy

    def fill(self, other: Cache) -> None:
        """Copy the content of another cache with as many rows into this one's fixed memory."""
        assert isinstance(self.length, Tensor) and isinstance(other.length, int)
        self.store[..., : other.length, :] = other.store[..., : other.length, :]
        self.length.fill_(other.length)
        if self.first is not None and other.first is not None:
            self.first.copy_(other.first)


@dataclass(frozen=True)
class NewTokens:
    """The next tokens of the rows of a KV cache: where they are written, and what they see.

    A slot holds the key and value of one token. In most rows, slots are positions. The beams of a
    search are tokens of one row at one position, and `visible` tells each the slots of its own
    hypothesis: no key is ever copied from beam to beam.
    """

    store: Tensor  # (layers, 2, B, G, L, D/H)
    start: int | Tensor  # the slot of a row's first new token; (B,) where rows differ
    n_keys: int  # slots that attention reads
    token_positions: Tensor | None = None  # (B, T); None: slots are positions
    slot_positions: Tensor | None = None  # (B, S)
    visible: Tensor | None = None  # (B, T, S) bool; None: all slots up to the token's own

    def layer(self, index: int) -> LayerCache:
        """Return one layer's view, which it reads and extends."""
        return LayerCache(self.store[index, 0], self.store[index, 1], self.start, self.n_keys)

    def mask(self, n_new: int, window: int) -> Mask:
        """Mask of the new tokens over the slots."""
        if self.visible is not None:
            return Mask(drawn=self._in_window(self.visible, window)[:, None])
        if n_new == 1 and not window and isinstance(self.start, int):
            return Mask()  # it is the last token of every row
        return Mask(causal=True, start=self.start, window=window)

    def _in_window(self, visible: Tensor, window: int) -> Tensor:
        if not window:
            return visible
        assert self.token_positions is not None and self.slot_positions is not None
        oldest = self.token_positions[..., None] - window
        return visible & (self.slot_positions[:, None, :] > oldest)

    def positions(self, n_new: int, longest: int) -> Tensor:
        """Position of each new token in its sequence, (T,) or (B, T)."""
        if self.token_positions is not None:
            return self.token_positions
        start = self.start[:, None] if isinstance(self.start, Tensor) else self.start
        return torch.arange(n_new, device=self.store.device) + start

    def key_positions(self, n_new: int) -> Tensor:
        """Position of each slot, (S,) or (B, S)."""
        if self.slot_positions is not None:
            return self.slot_positions
        return torch.arange(self.n_keys, device=self.store.device)

    def advance(self, n_tokens: int) -> None:
        """Do nothing: who made this object counts the tokens."""


@dataclass(frozen=True)
class LayerCache:
    """One layer's view of the cache."""

    key: Tensor  # (B, G, L, D/H)
    value: Tensor
    length: int | Tensor  # filled before the new tokens; (B,) where rows differ
    n_keys: int = 0  # where rows differ: what attention gets

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write new keys and values after the filled part; return all that attention gets."""
        n_new = key.shape[2]
        if isinstance(self.length, Tensor) and self.length.dim():
            slots = self.length[:, None] + torch.arange(n_new, device=key.device)  # (B, T)
            index = slots[:, None, :, None].expand(key.shape)
            self.key.scatter_(2, index, key.to(self.key.dtype))
            self.value.scatter_(2, index, value.to(self.value.dtype))
            return self.key[:, :, : self.n_keys], self.value[:, :, : self.n_keys]
        if isinstance(self.length, Tensor):
            positions = self.length + torch.arange(n_new, device=key.device)
            self.key.index_copy_(2, positions, key.to(self.key.dtype))
            self.value.index_copy_(2, positions, value.to(self.value.dtype))
            return self.key, self.value
        end = self.length + n_new
        # `narrow` fails past the end, where a slice would be empty and lose the token
        self.key.narrow(2, self.length, n_new).copy_(key)
        self.value.narrow(2, self.length, n_new).copy_(value)
        return self.key[:, :, :end], self.value[:, :, :end]
