"""Compiling a step, which fuses its kernels, while the plain one serves.

It takes up to a minute for each kind of step. What comes of it is kept on disk between processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from qkv.decode.step import Step
from qkv.shelf import home

MOST_KINDS = 64  # of steps in one process
MOST_MEMORY = 0.2  # of what is free: the scratch copy of a KV cache takes no more

_one_at_a_time = threading.Lock()


class Compiled:
    """A step that is compiled on a scratch copy of it, in a thread of its own or at once."""

    def __init__(self, step: Step, at_once: bool) -> None:
        device = step.store.device.type
        self._precision: dict[str, Any] = {
            "device_type": device,
            "dtype": torch.get_autocast_dtype(device),
            "enabled": torch.is_autocast_enabled(device),
            "cache_enabled": False,  # as in a recording
        }
        # What is copied for the scratch step must be there: the GPU may still be reading prompts.
        self._written = torch.cuda.Event() if step.store.is_cuda else None
        if self._written is not None:
            self._written.record()
        self.run: Callable[[], None] | None = None  # None: it is not ready, or cannot be compiled
        self.error: Exception | None = None
        # No daemon: a process that is left while it compiles would crash on its way out.
        self._thread = threading.Thread(target=self._try, args=(step,))
        self._thread.start()
        if at_once:
            self._thread.join()
            if self.error is not None:
                raise self.error

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to come, with or without success."""
        return not self._thread.is_alive()

    def _try(self, step: Step) -> None:
        try:
            self._compile(step)
        except Exception as error:
            self.error = error

    @torch.inference_mode()
    def _compile(self, step: Step) -> None:
        if step.store.is_cuda:
            free, _ = torch.cuda.mem_get_info(step.store.device)
            if step.store.nbytes > MOST_MEMORY * free:
                return
        from qkv.decode.row_products import RowProducts  # imports the compiler: seconds

        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(home() / "compiled"))
        options: dict[str, Any] = {"post_grad_custom_pre_pass": RowProducts()}
        function = torch.compile(_run, fullgraph=True, dynamic=False, options=options)
        with _one_at_a_time, torch.autocast(**self._precision), self._own_stream(step):
            _call(function, step.scratch())
        self.run = partial(_call, function, step)

    def _own_stream(self, step: Step) -> Any:
        """A stream beside the one that serves."""
        if self._written is None:
            return nullcontext()
        stream = torch.cuda.Stream(step.store.device)
        stream.wait_event(self._written)
        return torch.cuda.stream(stream)


def _run(step: Step) -> None:
    step.run()


def _call(function: Callable[[Step], None], step: Step) -> None:
    with torch._dynamo.config.patch(recompile_limit=MOST_KINDS):
        function(step)
