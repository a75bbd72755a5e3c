"""Recorded steps: on a GPU, a step of fixed shape is recorded once as a CUDA graph and replayed.

A decoding step is some hundreds of small kernels, and launching them one by one takes longer than
running them. A recording is tied to the memory that it ran on: other rows of the same kind are
copied into it. The step as it is serves first; meanwhile it is compiled, which fuses its kernels,
and recorded once more.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from qkv.cuda_graphs import assign, kind, leaves, record
from qkv.decode.compiling import Compiled
from qkv.decode.step import Step

WARM_UPS = 2  # so that libraries initialise before the recording
MOST = 32  # recordings of a lane; the least recently used are dropped first
MOST_FLYING = 32  # steps that were launched and not read
WORTH_COMPILING = 5000  # steps, after which as many more are likely to come


class Report:
    """What a step has chosen, on its way from the GPU."""

    def __init__(self, values: Tensor) -> None:
        """Take what will be in `values` once the GPU is here."""
        self._values = values
        self._arrived = torch.cuda.Event() if torch.cuda.is_available() else None
        if self._arrived is not None:
            self._arrived.record()

    def read(self) -> list[list[float]]:
        """Wait for it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values: list[list[float]] = self._values.tolist()
        return values


class Recording:
    """A step, and the memory that it reads and changes."""

    def __init__(self, step: Step, compiled: bool | None, pool: Any = None) -> None:
        self.step, self._n_launched, self._pool = step, 0, pool
        self._version = _version(step)
        self._compiled = Compiled(step, at_once=True) if compiled else None
        self._may_compile = step.store.is_cuda and compiled is not False
        self._run = self._record(step.run)
        # Reports on their way; there are never more of them.
        shape, on_gpu = step.state.report.shape, step.store.is_cuda
        self._reports = torch.zeros((MOST_FLYING, *shape), dtype=torch.float64, pin_memory=on_gpu)

    def _record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record a step, which runs it, and leave its memory as it was."""
        if not self.step.store.is_cuda:
            return run
        tensors = [*self._changed(self.step), *leaves(self.step.visible)]
        before = [tensor.clone() for tensor in tensors]
        device = self.step.store.device
        enabled, dtype = (
            torch.is_autocast_enabled(device.type),
            torch.get_autocast_dtype(device.type),
        )
        # Weights that autocast has converted and kept would be gone when the recording is replayed.
        with torch.autocast(device.type, dtype, enabled, cache_enabled=False):
            replay = record(run, device, WARM_UPS, self._pool)
        assign(tensors, before)
        return replay

    @staticmethod
    def _changed(step: Step) -> list[Tensor]:
        return [*leaves(step.state), *leaves(step.slots)]

    def load(self, step: Step) -> None:
        """Copy the rows of another step of this kind into this one's memory."""
        assign(self._changed(self.step), self._changed(step))

    def launch(self) -> Report:
        """Start the step; its report comes later."""
        self._n_launched += 1
        if self._may_compile:
            self._use_compiled()
        self._run()
        values = self._reports[self._n_launched % MOST_FLYING]
        values.copy_(self.step.state.report, non_blocking=True)
        return Report(values)

    @property
    def is_compiling(self) -> bool:
        """Whether it is being compiled in the background."""
        return self._compiled is not None and not self._compiled.is_done

    def _use_compiled(self) -> None:
        """Compile the step when it has run often, and record it again when that is done."""
        if self._compiled is None and self._n_launched >= WORTH_COMPILING:
            if _version(self.step) != self._version:  # it is being trained, which is slow enough
                self._may_compile = False
                return
            self._compiled = Compiled(self.step, at_once=False)
        if self._compiled is not None and self._compiled.is_done:
            self._may_compile = False
            if self._compiled.run is not None:
                self._run = self._record(self._compiled.run)
            elif self._compiled.error is not None:
                warnings.warn(f"a step goes on uncompiled: {self._compiled.error}", stacklevel=2)


class Recordings:
    """The recorded steps of a lane by kind: its rows, their rules, and the memory of keys."""

    def __init__(self, compiled: bool | None) -> None:
        self.compiled = compiled  # None: those that run often, in the background
        self._recordings: dict[Hashable, Recording] = {}
        self._pool: Any = None  # of memory for all of them: steps never overlap, nor keep any
        self._memory: tuple[Any, ...] = ()

    @property
    def is_compiling(self) -> bool:
        """Whether one of them is being compiled in the background."""
        return any(recording.is_compiling for recording in self._recordings.values())

    def find(self, step: Step) -> Recording:
        """Return a recording of this step, made at the first call for its kind."""
        sources = step.memory.layers[0].key if step.memory is not None else None
        memory = (step.store, sources, step.visible, next(step.model.parameters()))
        addresses = tuple(None if x is None else x.data_ptr() for x in memory)
        if addresses != self._memory:  # what was recorded reads memory that is no longer used
            self._recordings.clear()
            self._memory = addresses
        device = step.store.device.type
        precision = (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        key = (step.n_keys, kind(step.state), precision)
        recording = self._recordings.pop(key, None)
        if recording is None:
            while len(self._recordings) >= MOST:
                del self._recordings[next(iter(self._recordings))]
            if self._pool is None and step.store.is_cuda:
                self._pool = torch.cuda.graph_pool_handle()
            recording = Recording(step, self.compiled, self._pool)
        else:
            recording.load(step)
        self._recordings[key] = recording  # the last one is the one used last
        return recording


def _version(step: Step) -> int:
    """Count the changes of the model's first weight."""
    weight = next(step.model.parameters())
    return 0 if weight.is_inference() else weight._version
