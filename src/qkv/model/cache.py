"""The KV cache: keys and values of the tokens so far, in one tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.model import row_attention
from qkv.model.mask import Mask
from qkv.model.positions import Angles


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
    ended: Tensor | None = None  # (B·G,) int32 zeros, in which the kernel counts its programs

    def layer(self, index: int) -> LayerCache:
        """Return one layer's view, which it reads and extends."""
        key, value = self.store[index]
        return LayerCache(key, value, self.start, self.n_keys, self.ended)

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
        if isinstance(self.start, Tensor):
            columns = torch.arange(n_new, device=self.store.device) + self.start[:, None]
            return columns.clamp(max=longest - 1)  # rows that are done may go on past the end
        return torch.arange(n_new, device=self.store.device) + self.start

    def key_positions(self, n_new: int) -> Tensor:
        """Position of each slot, (S,) or (B, S)."""
        if self.slot_positions is not None:
            return self.slot_positions
        return torch.arange(self.n_keys, device=self.store.device)


@dataclass(frozen=True)
class LayerCache:
    """One layer's view of the cache."""

    key: Tensor  # (B, G, L, D/H)
    value: Tensor
    length: int | Tensor  # slots filled before the new tokens; (B,) where rows differ
    n_keys: int  # slots that attention gets
    ended: Tensor | None = None

    @property
    def has_rows(self) -> bool:
        """Whether rows have filled differently many slots."""
        return isinstance(self.length, Tensor)

    def attend(
        self, query_key: Tensor, value: Tensor, mask: Mask, scale: float, angles: Angles | None
    ) -> Tensor:
        """Write new keys and values, and attend to all, in one kernel, (B, H, T, D/H).

        Queries and keys come in one tensor, (B, H + G, T, D/H), to be turned by the angles.
        """
        assert isinstance(self.length, Tensor)
        visible = None if mask.causal or mask.drawn is None else mask.drawn[:, 0]
        return row_attention.extend_and_attend(
            query_key,
            value,
            (self.key, self.value),
            self.length,
            visible,
            scale,
            mask.window,
            angles,
            self.ended,
        )

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write new keys and values after the filled part; return all that attention gets."""
        n_new = key.shape[2]
        if isinstance(self.length, Tensor):
            slots = self.length[:, None] + torch.arange(n_new, device=key.device)  # (B, T)
            index = slots[:, None, :, None].expand(key.shape)
            self.key.scatter_(2, index, key.to(self.key.dtype))
            self.value.scatter_(2, index, value.to(self.value.dtype))
            return self.key[:, :, : self.n_keys], self.value[:, :, : self.n_keys]
        # `narrow` fails past the end, where a slice would be empty and lose the token
        self.key.narrow(2, self.length, n_new).copy_(key)
        self.value.narrow(2, self.length, n_new).copy_(value)
        return self.key[:, :, : self.n_keys], self.value[:, :, : self.n_keys]
