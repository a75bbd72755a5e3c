"""A lane: the rows of a running batch that have equally many beams, and their KV cache.

Row i of the cache holds the keys of request i, from slot 0 on: those of its prompt, then K slots
for each step, one for each beam. A beam knows the slots of its own hypothesis, so that reordering
beams moves flags and no keys. Rows that run are always the first ones: when a request leaves, the
last row takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from qkv.decode.beam import BeamSearch
from qkv.decode.greedy import GreedySearch
from qkv.decode.prompts import Generative, Prefill, empty_store, read
from qkv.decode.request import Event, Handle
from qkv.model import KeysValues, Layout, Memory, NewTokens

LEAST_SLOTS = 64  # slots and rows are allocated in powers of two, from these on
LEAST_ROWS = 8


class Lane:
    """Requests with K beams each that run together."""

    def __init__(self, model: Generative, beams: int) -> None:
        self.model, self.beams = model, beams
        vocab_size, self.device = model.config.vocab_size, next(model.parameters()).device
        self.search: GreedySearch | BeamSearch = (
            GreedySearch(vocab_size, self.device)
            if beams == 1
            else BeamSearch(beams, vocab_size, self.device)
        )
        self.store: Tensor | None = None  # (layers, 2, R, G, L, D/H)
        self.visible = torch.zeros((0, beams, 0), dtype=torch.bool, device=self.device)  # (R, K, L)
        self.filled: list[int] = []  # slots of each row that runs
        self.sources: Tensor | None = None  # (layers, 2, R, G, S, D/H): keys of sources
        self.source_lengths: list[int] = []
        # What changes only when requests come or go
        self._start: Tensor | None = None  # (B,): slots filled; None: equally many in all rows
        self._memory: Memory | None = None
        self._n_steps = 0  # since requests came or went
        config = model.config
        has_windows = any(map(config.window_of, range(config.n_decoder_layers)))
        self._needs_positions = beams > 1 and (has_windows or config.positions == "relative")

    @property
    def handles(self) -> list[Handle]:
        """The requests that run, one for each row."""
        return self.search.handles

    # Who runs

    def join(self, prefill: Prefill) -> None:
        """Copy what was read for some requests into rows of their own."""
        begin, handles = len(self.filled), prefill.handles
        lengths = [len(prompt) for prompt in prefill.prompts]
        self._make_room(begin + len(handles), max([*self.filled, *lengths]) + self.beams)
        assert self.store is not None
        for index, length in enumerate(lengths):
            row = min(index, prefill.store.shape[2] - 1)  # all prompts may be one
            self.store[:, :, begin + index, :, :length] = prefill.store[:, :, row, :, :length]
            if self.beams > 1:
                self.visible[begin + index] = False
                self.visible[begin + index, :, :length] = True
        if prefill.memory is not None:
            self._add_sources(begin, prefill.memory, [len(x.request.source) for x in handles])
        self.filled += lengths
        self.search.change(range(begin), handles)
        self._renew()

    def drop_done(self) -> None:
        """Let requests that are done leave; the last rows take their places."""
        done = [row for row, handle in enumerate(self.handles) if handle.is_done]
        if not done:
            return
        left = len(self.filled) - len(done)
        stay = [row for row in range(left, len(self.filled)) if row not in done]
        holes = [row for row in done if row < left]
        order = list(range(left))
        for hole, row in zip(holes, stay, strict=True):
            order[hole] = row
            self._move(row, hole)
        self.filled = [self.filled[row] for row in order]
        if self.sources is not None:
            self.source_lengths = [self.source_lengths[row] for row in order]
        self.search.change(order, [])
        self._renew()

    def keys_of(self, handle: Handle, n_tokens: int) -> Tensor:
        """Copy the keys and values of a row's first tokens, (layers, 2, G, L, D/H)."""
        assert self.store is not None
        return self.store[:, :, self.handles.index(handle), :, :n_tokens].clone()

    # A step

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Read the newest token of every hypothesis, and choose the next ones."""
        start = self.filled[0] if self._start is None else self._start
        n_keys = max(self.filled) + self.beams
        self._make_room(len(self.filled), n_keys)
        hidden = read(self.model, self.search.newest, self._memory, self._new_tokens(start, n_keys))
        logits: Tensor = self.model.output(hidden)
        events, parents = self.search.step(logits.float())
        if parents is not None:
            here = self.visible[: len(self.filled), :, :n_keys]
            here.copy_(here.take_along_dim(parents[..., None], dim=1))
        self.filled = [slots + self.beams for slots in self.filled]
        if self._start is not None:
            self._start = self._start + self.beams
        self._n_steps += 1
        return events

    def _new_tokens(self, start: int | Tensor, n_keys: int) -> NewTokens:
        assert self.store is not None
        rows, beams = len(self.filled), self.beams
        store = self.store[:, :, :rows]
        if beams == 1:
            return NewTokens(store, start, n_keys)
        visible = self.visible[:rows, :, :n_keys]
        if isinstance(start, int):
            visible[:, :, start : start + beams] = self._own
        else:
            own = start[:, None] + torch.arange(beams, device=self.device)
            visible.scatter_(2, own[..., None], True)
        positions = (self._first_position + self._n_steps)[:, None].expand(-1, beams)
        slots = self._slot_positions(n_keys) if self._needs_positions else None
        return NewTokens(store, start, n_keys, positions, slots, visible)

    def _slot_positions(self, n_keys: int) -> Tensor:
        """Position of each slot, (B, S): K slots after the prompt share one."""
        slot = torch.arange(n_keys, device=self.device)[None]
        prompt = self._prompt_slots[:, None]
        return torch.where(slot < prompt, slot, prompt + (slot - prompt) // self.beams)

    def _renew(self) -> None:
        """Compute what changes only when requests come or go."""
        if not self.filled:
            return
        handles, beams = self.handles, self.beams
        even = min(self.filled) == max(self.filled)
        self._start = None if even else torch.tensor(self.filled, device=self.device)
        prompts = [len(handle.request.prompt) - 1 for handle in handles]
        steps = [
            (slots - prompt) // beams for slots, prompt in zip(self.filled, prompts, strict=True)
        ]
        first = [prompt + step for prompt, step in zip(prompts, steps, strict=True)]
        self._prompt_slots = torch.tensor(prompts, device=self.device)
        self._first_position = torch.tensor(first, device=self.device)
        self._n_steps = 0
        self._own = torch.eye(beams, dtype=torch.bool, device=self.device)
        self._memory = self._sources_in_use()

    def _sources_in_use(self) -> Memory | None:
        if self.sources is None:
            return None
        rows, lengths = len(self.filled), self.source_lengths
        longest = max(lengths)
        keys = self.sources[:, :, :rows, :, :longest]
        layout = Layout()
        if min(lengths) < longest:
            layout = Layout(lengths=torch.tensor(lengths, device=self.device))
        return Memory(tuple(KeysValues(layer[0], layer[1]) for layer in keys), layout)

    # Memory

    def _make_room(self, rows: int, slots: int) -> None:
        """Allocate more rows or slots where these are not enough."""
        used = len(self.filled)
        self.store = _grown(self.store, rows, slots, used, partial(empty_store, self.model))
        if self.beams > 1 and self.visible.shape[::2] != self.store.shape[2:5:2]:
            before = self.visible[:used]
            shape = (self.store.shape[2], self.beams, self.store.shape[4])
            self.visible = torch.zeros(shape, dtype=torch.bool, device=self.device)
            self.visible[:used, :, : before.shape[2]] = before

    def _add_sources(self, begin: int, memory: Memory, lengths: list[int]) -> None:
        n_rows, (like, _) = begin + len(lengths), memory.layers[0]
        n_layers, (_, groups, width, d_head) = len(memory.layers), like.shape
        self.sources = _grown(
            self.sources,
            n_rows,
            width,
            begin,
            lambda rows, width: like.new_zeros((n_layers, 2, rows, groups, width, d_head)),
        )
        for store, (key, value) in zip(self.sources, memory.layers, strict=True):
            store[0, begin:n_rows, :, :width] = key
            store[1, begin:n_rows, :, :width] = value
        self.source_lengths = [*self.source_lengths[:begin], *lengths]

    def _move(self, source: int, target: int) -> None:
        assert self.store is not None
        filled = self.filled[source]
        self.store[:, :, target, :, :filled] = self.store[:, :, source, :, :filled]
        if self.beams > 1:
            self.visible[target] = self.visible[source]
        if self.sources is not None:
            width = self.source_lengths[source]
            self.sources[:, :, target, :, :width] = self.sources[:, :, source, :, :width]


def _grown(
    store: Tensor | None, rows: int, slots: int, used: int, empty: Callable[[int, int], Tensor]
) -> Tensor:
    """Return a store with at least so many rows and slots, and the rows in use of the last one."""
    have = (0, 0) if store is None else (store.shape[2], store.shape[4])
    if store is not None and rows <= have[0] and slots <= have[1]:
        return store
    rows = max(have[0], _power_of_two(rows, LEAST_ROWS) if rows > have[0] else 0)
    slots = max(have[1], _power_of_two(slots, LEAST_SLOTS) if slots > have[1] else 0)
    larger = empty(rows, slots)
    if store is not None and used:
        larger[:, :, :used, :, : have[1]] = store[:, :, :used]
    return larger


def _power_of_two(size: int, least: int) -> int:
    return max(least, 1 << (size - 1).bit_length())
