"""The KV cache: keys and values of the tokens so far, in one tensor of fixed shape."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.model.mask import Mask


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
class LayerCache:
    """One layer's view of the cache."""

    key: Tensor  # (B, G, L, D/H)
    value: Tensor
    length: int | Tensor

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write new keys and values after the filled part; return all that attention gets."""
        n_new = key.shape[2]
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
