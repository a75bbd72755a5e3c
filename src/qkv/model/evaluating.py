"""One user of a model at a time, with dropout off."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

_LOCKS: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off inside the block, and keep other threads out of it.

    A pass may change the model for a while (a trace swaps its attention for the equation), so two
    threads must not run one model at the same time.
    """
    with _LOCKS_LOCK:
        lock = _LOCKS.setdefault(model, threading.RLock())
    with lock:
        training = model.training
        if training:
            model.eval()
        try:
            yield
        finally:
            if training:
                model.train()
