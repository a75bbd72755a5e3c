"""One step of a search on the device: read the newest tokens, and choose the next ones.

All that it changes, it changes in place, and nothing of it needs the host: so it can be recorded as
a CUDA graph, or compiled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.cuda_graphs import cloned
from qkv.decode.beam import OpenBeams
from qkv.decode.greedy import GreedyState
from qkv.decode.prompts import Generative, read
from qkv.model import Memory, NewTokens


@dataclass
class Slots:
    """Where the rows of a batch are: the slots that each has filled, and its next position."""

    start: Tensor  # (B,) int64: slots filled
    position: Tensor  # (B,) int64: of the newest token
    prompt: Tensor  # (B,) int64: slots of the prompt
    source_lengths: Tensor  # (B,) int64: 0 where there are no sources
    ended: Tensor  # (B·G,) int32: zeros, in which attention's kernel counts its programs


@dataclass
class Step:
    """The model, and what a step of B rows with K beams reads and changes."""

    model: Generative
    state: GreedyState | OpenBeams
    slots: Slots
    store: Tensor  # (layers, 2, B, G, L, D/H)
    n_keys: int  # slots that attention reads
    memory: Memory | None = None  # sources
    visible: Tensor | None = None  # (B, K, L) bool: the slots of each beam's hypothesis
    filled: int | None = None  # slots, where all rows have filled equally many
    has_idle_rows: bool = False  # that run on beside the others when they are done

    def run(self) -> None:
        """Read the newest token of every hypothesis, and choose the next ones."""
        state, slots = self.state, self.slots
        n_beams = state.newest.shape[1]
        new = self._new_tokens(n_beams)
        logits: Tensor = self.model.output(read(self.model, state.newest, self.memory, new))
        parents = state.advance(logits.float())
        if parents is not None and new.visible is not None:
            new.visible.copy_(new.visible.take_along_dim(parents[..., None], dim=1))
        slots.start.add_(n_beams)
        slots.position.add_(1)
        if self.has_idle_rows:  # these stay within the memory that there is
            slots.start.clamp_(max=self.n_keys - n_beams)
            slots.position.clamp_(max=self.model.config.max_length - 1)

    def _new_tokens(self, n_beams: int) -> NewTokens:
        start = self.slots.start if self.filled is None else self.filled
        ended = self.slots.ended
        if self.visible is None:
            return NewTokens(self.store, start, self.n_keys, ended=ended)
        visible = self.visible[:, :, : self.n_keys]
        own = self.slots.start[:, None] + torch.arange(n_beams, device=visible.device)
        visible.scatter_(2, own[..., None], True)
        positions = self.slots.position[:, None].expand(-1, n_beams)
        slot_positions = self._slot_positions(n_beams)
        return NewTokens(self.store, start, self.n_keys, positions, slot_positions, visible, ended)

    def _slot_positions(self, n_beams: int) -> Tensor | None:
        """Position of each slot, (B, S): K slots after the prompt share one."""
        config = self.model.config
        has_windows = any(map(config.window_of, range(config.n_decoder_layers)))
        if not (has_windows or config.biases_scores):
            return None  # nobody asks
        slot = torch.arange(self.n_keys, device=self.store.device)[None]
        prompt = self.slots.prompt[:, None]
        return torch.where(slot < prompt, slot, prompt + (slot - prompt) // n_beams)

    def scratch(self) -> Step:
        """Return a copy that can be run without changing this one; its KV cache is empty."""
        return replace(
            self,
            state=cloned(self.state),
            slots=replace(cloned(self.slots), ended=torch.zeros_like(self.slots.ended)),
            # Compiled code depends on strides, and this may be a part of a larger store.
            store=torch.empty_strided(
                self.store.size(),
                self.store.stride(),
                dtype=self.store.dtype,
                device=self.store.device,
            ).zero_(),
            visible=cloned(self.visible),
        )
