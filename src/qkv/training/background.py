"""Checkpoints that are written while training goes on: one at a time, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundWrite:
    """A file that is being written by a thread, or none.

    What the thread writes must be a copy that training does not change. `wait`
    raises its errors.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._done: Callable[[], None] = lambda: None

    def start(self, write: Callable[[], None], done: Callable[[], None]) -> None:
        """Wait for the file before it, then write this one; who waits for it calls `done`."""
        self.wait()

        def run() -> None:
            try:
                write()
            except BaseException as error:
                self._error = error

        self._done = done
        self._thread = threading.Thread(target=run, name="checkpoint")
        self._thread.start()

    def poll(self) -> None:
        """See to a file that is written by now."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait until the file is written; raise what went wrong."""
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if (error := self._error) is not None:
            self._error = None
            raise error
        self._done()
