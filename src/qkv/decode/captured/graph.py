"""Captured steps: on a GPU, one search step recorded once as a CUDA graph and then replayed.

A decoding step is some hundreds of small kernels, and launching them one by one takes longer than
running them. A recording is tied to the tensors that it ran on, so these are kept with it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic

import torch

from qkv.decode.captured.state import S, Search, Task
from qkv.decode.captured.step import advance, empty_cache
from qkv.decode.prompts import Generative
from qkv.model import Cache, KeysValues, Layout, Memory

WARM_UPS = 2  # so that libraries initialise before the recording


class Replay:
    """A function that changes tensors in place, replayed as a CUDA graph on a GPU."""

    def __init__(self, step: Callable[[], None], device: torch.device, pool: Any = None) -> None:
        self.function = step
        self._call = record(step, device, pool) if device.type == "cuda" else step

    def __call__(self) -> None:
        """Replay the recording; on a CPU, call the function."""
        self._call()


def record(step: Callable[[], None], device: torch.device, pool: Any) -> Callable[[], None]:
    """Run the step a few times on scratch values, then record it."""
    enabled, dtype = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    # Weights that autocast has converted and kept would be gone when the recording is replayed.
    with torch.autocast(device.type, dtype, enabled, cache_enabled=False):
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                step()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads (a server's, a loader's) may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):
            step()
    return graph.replay


@dataclass(frozen=True)
class Slot(Generic[S]):
    """One search's tensors, at fixed addresses, and the step that changes them."""

    memory: Memory | None
    cache: Cache
    state: S
    step: Replay

    def load(self, memory: Memory | None, cache: Cache, state: S) -> None:
        """Copy a new batch, after its prefill, over the last one."""
        for tensor, new in zip(_tensors(self.memory), _tensors(memory), strict=True):
            tensor.copy_(new)
        self.cache.fill(cache)
        self.state.assign(state)


class Graphs:
    """Captured steps by shape, reused between batches; the oldest are dropped first.

    Each is tied to the addresses of its model's weights: training may change them in place, but
    after a model has moved, make new ones. Not thread-safe. `compiled` fuses a step's kernels
    before it is captured, which takes a minute for each shape.
    """

    def __init__(self, most: int = 16, compiled: bool = False) -> None:
        self.most = most
        self.compiled = compiled
        self._slots: dict[Hashable, Slot[Any]] = {}
        # One memory pool for all: steps never overlap and keep nothing in it.
        self._pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None

    def __len__(self) -> int:
        return len(self._slots)

    def slot(
        self, model: Generative, search: Search[S], memory: Memory | None, cache: Cache, task: Task
    ) -> Slot[S]:
        """Return the slot for this search and these shapes, made at the first call."""
        like = cache.store
        shapes = tuple(tensor.shape for tensor in _tensors(memory))
        padded = cache.first is not None
        key = (id(model), search, shapes, like.shape[2], like.dtype, like.device, padded, task.room)
        if key not in self._slots:
            while len(self._slots) >= self.most:
                del self._slots[next(iter(self._slots))]
            self._slots[key] = self._make(model, search, memory, cache, task)
        return self._slots[key]

    def _make(
        self, model: Generative, search: Search[S], memory: Memory | None, cache: Cache, task: Task
    ) -> Slot[S]:
        memory, first = _copy(memory), cache.first
        cache = empty_cache(model, cache.store.shape[2], task.room, fixed=True)
        cache.first = None if first is None else first.clone()
        state = search.start(task).copy()

        def step() -> None:
            state.assign(advance(model, search, memory, cache, state))

        run = torch.compile(step, fullgraph=True, dynamic=False) if self.compiled else step
        return Slot(memory, cache, state, Replay(run, cache.store.device, self._pool))


def _tensors(memory: Memory | None) -> list[torch.Tensor]:
    if memory is None:
        return []
    assert memory.layout.lengths is not None, "a padded source needs its length"
    return [memory.layout.lengths, *(tensor for layer in memory.layers for tensor in layer)]


def _copy(memory: Memory | None) -> Memory | None:
    if memory is None:
        return None
    lengths, *tensors = (tensor.clone() for tensor in _tensors(memory))
    layers = (KeysValues(*pair) for pair in zip(tensors[::2], tensors[1::2], strict=True))
    return Memory(tuple(layers), Layout(lengths=lengths))
