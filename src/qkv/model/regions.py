"""Parts of a model that are compiled by themselves: each kind of block, and the loss.

The whole pass as one graph takes 1.5 to 2 times as long to compile. It has fewer calls to launch,
which does not count where steps are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import FunctionType

import torch
from torch import Tensor

Part = Callable[..., Tensor]
Run = Callable[..., Tensor]
"""Calls a part with its arguments."""
_RUN: ContextVar[Run | None] = ContextVar("run", default=None)


def call(part: Part, *arguments: object) -> Tensor:
    """Call a part; what is compiled, once for all layers of a kind."""
    return part(*arguments)


def own_call() -> Run:
    """Return a function like `call` with code of its own.

    Torch compiles a function's code for a few kinds of arguments only, those of all models of a
    process together; further kinds would run uncompiled.
    """
    return FunctionType(call.__code__.replace(), globals(), call.__name__)


def region(part: Part) -> Part:
    """Return the part as `use_regions` has it called."""
    if torch.compiler.is_compiling():  # as a whole
        return part
    run = _RUN.get()
    return part if run is None else partial(run, part)


@contextmanager
def use_regions(run: Run | None) -> Iterator[None]:
    """Call the parts of all models by `run` (a compiled `own_call`) inside the block."""
    token = _RUN.set(run)
    try:
        yield
    finally:
        _RUN.reset(token)
