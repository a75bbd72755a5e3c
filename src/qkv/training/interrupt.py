"""Ctrl-C and SIGTERM during training: finish the step, write a checkpoint, then stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingInterrupt(KeyboardInterrupt):
    """Raised when a signal stopped a run, after its checkpoint was written."""

    def __init__(self, signal_number: int, step: int) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(f"{name} stopped training after step {step}; a checkpoint was written")
        self.signal_number, self.step = signal_number, step


@contextmanager
def noted_signals(say: Callable[[str], None], several: bool = False) -> Iterator[list[int]]:
    """Collect the first SIGINT or SIGTERM in a list instead of stopping; a second one stops.

    One of `several` workers may get the same signal twice, from a terminal or scheduler and from
    its launcher: it notes both, and is left to the launcher, which can kill it.

    Python delivers signals to the main thread only; in any other, nothing changes.
    """
    received: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        if several and received:
            return
        if not several:
            restore()
        received.append(number)
        with suppress(RuntimeError):  # it may have interrupted another print
            say("stopping after this step, with a checkpoint; Ctrl-C again stops at once")

    if threading.current_thread() is threading.main_thread():
        # An ignored signal (nohup, a background job) stays ignored.
        before = {
            number: signal.getsignal(number)
            for number in SIGNALS
            if signal.getsignal(number) not in (signal.SIG_IGN, None)
        }
        for number in before:
            signal.signal(number, note)
    try:
        yield received
    finally:
        restore()
