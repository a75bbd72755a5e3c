"""A lane: the rows of a running batch that have equally many beams, and their KV cache.

Row i of the cache holds the keys of request i, from slot 0 on: those of its prompt, then K slots
for each step, one for each beam. A beam knows the slots of its own hypothesis, so that reordering
beams moves flags and no keys. Rows that run are always the first ones: when a request leaves, the
last row takes its place.

On a CPU, a step is run for the rows that there are and the slots that are filled. On a GPU it has a
fixed shape and is recorded (recording.py): rows are filled up to a power of two, and those of
requests that are done run on idly until half of all are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from qkv.batching import on_device
from qkv.decode.beam import BeamSearch
from qkv.decode.greedy import GreedySearch
from qkv.decode.prompts import Generative, Prefill, bytes_per_slot, empty_store
from qkv.decode.recording import Recording, Recordings, Report
from qkv.decode.request import Event, Handle
from qkv.decode.sizes import power_of_two, some_more
from qkv.decode.step import Slots, Step
from qkv.model import KeysValues, Layout, Memory, row_attention

LEAST_SLOTS = 64  # of fixed shape, slots are allocated in powers of two, from these on
LEAST_SOURCE = 16
LEAST_ROWS = 8  # on a CPU, rows are; slots lie close together, since gaps are slow to read across
ROWS_AHEAD = 64  # of fixed shape, allocated at once, since steps are recorded anew when they move
BYTES_AHEAD = 2**27  # of the KV cache of these rows; fewer are allocated where they take more


class Lane:
    """Requests with K beams each that run together."""

    def __init__(
        self,
        model: Generative,
        beams: int,
        fixed: bool = False,
        compiled: bool | None = None,
        leaves: Callable[[Lane, Handle], None] = lambda lane, handle: None,
    ) -> None:
        self.model, self.beams, self.fixed = model, beams, fixed
        self._leaves = leaves  # hears of a request that is done, while its keys are still there
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
        self._slots: Slots  # renewed when requests come or go
        self._memory: Memory | None = None
        self._recordings = Recordings(compiled)
        self.recording: Recording  # of the rows that there are now, where shapes are fixed
        self._flying: list[Report] = []  # steps that were launched and not collected

    @property
    def handles(self) -> list[Handle]:
        """The requests of the rows; on a GPU, some may be done."""
        return self.search.handles

    @property
    def n_running(self) -> int:
        """Number of requests that are not done."""
        return sum(not handle.is_done for handle in self.handles)

    @property
    def is_idle(self) -> bool:
        """Whether no request runs."""
        return not self.n_running

    @property
    def is_compiling(self) -> bool:
        """Whether a step is being compiled in the background."""
        return self._recordings.is_compiling

    # Who runs

    def join(self, prefill: Prefill) -> list[Event]:
        """Copy what was read for some requests into rows of their own.

        Also returns the tokens of steps that were launched ahead.
        """
        events = self._settle()
        kept = self._close_gaps()
        begin, handles = len(kept), prefill.handles
        lengths = [len(prompt) for prompt in prefill.prompts]
        together = [*(self.handles[row] for row in kept), *handles]
        self._make_room(len(together), self._slots_for(together, lengths))
        assert self.store is not None
        longest = max(lengths)  # a slot after a row's own length is written before it is read
        self.store[:, :, begin : begin + len(handles), :, :longest] = prefill.store
        if self.beams > 1:
            ends = on_device(lengths, self.device)[:, None, None]
            slots = torch.arange(self.visible.shape[2], device=self.device)
            self.visible[begin : begin + len(handles)] = slots < ends
        if prefill.memory is not None:
            self._add_sources(begin, prefill.memory, [len(x.request.source) for x in handles])
        self.filled += lengths
        self._change(kept, handles)
        return events

    def drop_done(self, at_once: bool = True) -> list[Event]:
        """Let requests that are done leave; the last rows take their places.

        On a GPU, unless `at_once`, they do so when half of the rows are free. Also returns the
        tokens of steps that were launched ahead.
        """
        n_left = self.n_running
        waits = self.fixed and not at_once and n_left and power_of_two(n_left) == self._n_rows
        if waits or n_left == len(self.handles):
            return []
        events = self._settle()
        self._change(self._close_gaps(), [])
        return events

    def _close_gaps(self) -> list[int]:
        """Move the last rows to where requests are done; return the rows that stay, in order."""
        done = {row for row, handle in enumerate(self.handles) if handle.is_done}
        for row in done:
            self._leaves(self, self.handles[row])
        left = len(self.filled) - len(done)
        stay = [row for row in range(left, len(self.filled)) if row not in done]
        holes = [row for row in sorted(done) if row < left]
        order = list(range(left))
        for hole, row in zip(holes, stay, strict=True):
            order[hole] = row
            self._move(row, hole)
        self.filled = [self.filled[row] for row in order]
        if self.sources is not None:
            self.source_lengths = [self.source_lengths[row] for row in order]
        return order

    def keys_of(self, handle: Handle, n_tokens: int) -> Tensor:
        """Copy the keys and values of a row's first tokens, (layers, 2, G, L, D/H)."""
        assert self.store is not None
        return self.store[:, :, self.handles.index(handle), :, :n_tokens].clone()

    # A step

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Read the newest token of every hypothesis, and choose the next ones."""
        if not self.fixed:
            n_keys = max(self.filled) + self.beams
            self._make_room(len(self.filled), n_keys)
            self._step(n_keys).run()
            self._count_step()
            return self.search.collect(self.search.state.report.tolist())
        # While the tokens of a step are handed out, the GPU runs the next one.
        self.run_ahead(2)
        return self._collect()

    def run_ahead(self, n_steps: int) -> None:
        """Launch steps until so many are under way, so that the GPU has work meanwhile."""
        if any(handle.request.record for handle in self.handles):
            n_steps = 1  # whose record is read before the next step
        while len(self._flying) < n_steps:
            self._flying.append(self.recording.launch())
            self._count_step()

    def _settle(self) -> list[Event]:
        """Wait for steps that were launched ahead, and hand out their tokens."""
        return [event for _ in range(len(self._flying)) for event in self._collect()]

    def _collect(self) -> list[Event]:
        return self.search.collect(self._flying.pop(0).read())

    def _count_step(self) -> None:
        self.filled = [slots + self.beams for slots in self.filled]

    def _step(self, n_keys: int) -> Step:
        assert self.store is not None
        rows = self._n_rows
        even = not self.fixed and min(self.filled) == max(self.filled)
        return Step(
            self.model,
            self.search.state,
            self._slots,
            self.store[:, :, :rows],
            n_keys,
            self._memory,
            self.visible[:rows] if self.beams > 1 else None,
            filled=self.filled[0] if even else None,
            has_idle_rows=self.fixed,
        )

    # What changes only when requests come or go

    @property
    def _n_rows(self) -> int:
        """Rows of a step, those included that fill it up."""
        return power_of_two(len(self.filled)) if self.fixed else len(self.filled)

    def _change(self, kept: Sequence[int], joined: Sequence[Handle]) -> None:
        self.search.change(kept, joined, self._n_rows)
        if not self.filled:
            return
        n_more = self._n_rows - len(self.filled)
        prompts = [len(handle.request.prompt) - 1 for handle in self.handles]
        pairs = zip(self.filled, prompts, strict=True)
        positions = [prompt + (slots - prompt) // self.beams for slots, prompt in pairs]
        lengths = self.source_lengths or [0] * len(prompts)
        columns = (self.filled, positions, prompts, lengths)
        # A row that fills up has an empty prompt, and one source token: attention needs a key.
        rows = [[*column, *[0] * n_more] for column in columns[:3]]
        rows.append([*lengths, *[1] * n_more])
        n_programs = self._n_rows * self.model.config.kv_heads
        ended = torch.zeros(n_programs, dtype=torch.int32, device=self.device)
        start, position, prompt, sources = (x.clone() for x in on_device(rows, self.device))
        self._slots = Slots(start, position, prompt, sources, ended)
        self._memory = self._sources_in_use()
        if self.fixed:
            self._record()

    def _record(self) -> None:
        """Find or make the recorded step for rows of this kind, and use its memory."""
        assert self.store is not None
        n_keys = self.store.shape[4]
        if not (self.model.config.has_plain_scores and row_attention.is_available()):
            n_keys = min(n_keys, self._slots_for(self.handles))  # attention reads all of these
        self.recording = self._recordings.find(self._step(n_keys))
        self.search.state = self.recording.step.state

    def _sources_in_use(self) -> Memory | None:
        if self.sources is None:
            return None
        longest, rows = max(self.source_lengths), self._n_rows
        if self.fixed:
            longest = self.sources.shape[4]
        keys = self.sources[:, :, :rows, :, :longest]
        layout = Layout()
        if self.fixed or min(self.source_lengths) < longest:
            layout = Layout(lengths=self._slots.source_lengths)
        return Memory(tuple(KeysValues(layer[0], layer[1]) for layer in keys), layout)

    # Memory

    def _slots_for(self, handles: list[Handle], lengths: list[int] | None = None) -> int:
        """Slots to allocate: for the next step, or for a whole request where shapes are fixed."""
        if not self.fixed:
            return max([*self.filled, *(lengths or [])]) + self.beams
        # Steps that are launched ahead may come after the last one.
        most = max(handle.request.slots for handle in handles) + 2 * self.beams
        return power_of_two(most, LEAST_SLOTS)

    def _make_room(self, rows: int, slots: int) -> None:
        """Allocate more rows or slots where these are not enough."""
        used = len(self.filled)
        rows = power_of_two(rows) if self.fixed else power_of_two(rows, LEAST_ROWS)
        if self.fixed:
            slots = power_of_two(slots, LEAST_SLOTS)
            rows = max(rows, self._rows_ahead(slots))
        elif self.store is None or slots > self.store.shape[4]:
            slots = some_more(slots)
        self.store = _grown(self.store, rows, slots, used, partial(empty_store, self.model))
        if self.beams > 1 and self.visible.shape[::2] != self.store.shape[2:5:2]:
            before = self.visible[:used]
            shape = (self.store.shape[2], self.beams, self.store.shape[4])
            self.visible = torch.zeros(shape, dtype=torch.bool, device=self.device)
            self.visible[:used, :, : before.shape[2]] = before

    def _rows_ahead(self, slots: int) -> int:
        """Rows to allocate at once: a power of two of them that takes little memory, or 0."""
        slots = max(slots, 0 if self.store is None else self.store.shape[4])
        n_rows = BYTES_AHEAD // (slots * bytes_per_slot(self.model))
        return min(ROWS_AHEAD, power_of_two(n_rows + 1) // 2)

    def _add_sources(self, begin: int, memory: Memory, lengths: list[int]) -> None:
        assert self.store is not None
        n_rows, (like, _) = begin + len(lengths), memory.layers[0]
        n_layers, (_, groups, width, d_head) = len(memory.layers), like.shape
        self.sources = _grown(
            self.sources,
            self.store.shape[2],
            power_of_two(width, LEAST_SOURCE) if self.fixed else width,
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
    if store is None:
        return empty(rows, slots)
    n_rows, n_slots = store.shape[2], store.shape[4]
    if rows <= n_rows and slots <= n_slots:
        return store
    larger = empty(max(rows, n_rows), max(slots, n_slots))
    larger[:, :, :used, :, :n_slots] = store[:, :, :used]
    return larger
