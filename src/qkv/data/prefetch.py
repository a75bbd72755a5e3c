"""Work done ahead of the one who waits for it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


def prefetch(items: Iterable[T], prepare: Callable[[T], U], ahead: int = 4) -> Generator[U]:
    """Yield prepare(item) for each item, in order, with up to `ahead` of them made beforehand.

    Both `items` and `prepare` run in a thread of their own, from the first item that is asked for
    until the last one or until the iterator is closed. What they raise is raised here. In a new
    thread "cuda" means device 0, so that `prepare` should name its device by number.
    """
    worker = _Worker(items, prepare, ahead)
    worker.start()
    try:
        yield from worker.results()
    finally:
        worker.stop()


class _Worker(Thread, Generic[T, U]):
    """Makes results until the items end, something fails or nobody wants more."""

    def __init__(self, items: Iterable[T], prepare: Callable[[T], U], ahead: int) -> None:
        super().__init__(name="qkv-prefetch", daemon=True)
        self.items, self.prepare = items, prepare
        self.ready: SimpleQueue[list[U]] = SimpleQueue()  # one result each; empty after the last
        self.free = Semaphore(ahead)
        self.stopped = Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for item in self.items:
                self.free.acquire()
                if self.stopped.is_set():
                    return
                self.ready.put([self.prepare(item)])
        except BaseException as error:  # whatever it is, a consumer that waits must learn of it
            self.error = error
        finally:
            self.ready.put([])

    def results(self) -> Iterator[U]:
        while result := self.ready.get():
            self.free.release()
            yield result[0]
        if self.error:
            raise self.error

    def stop(self) -> None:
        self.stopped.set()
        self.free.release()
        # At the end of the interpreter daemon threads are frozen: never wait for one for ever.
        self.join(timeout=1)
