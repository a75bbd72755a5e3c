"""Prefetching: results computed ahead of their use, in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def prefetch(items: Iterable[T], prepare: Callable[[T], U], ahead: int = 4) -> Generator[U]:
    """Yield prepare(item) for each item, in order, with up to `ahead` of them made beforehand.

    Both `items` and `prepare` run in a thread of their own, from the first item that is asked for
    until the last one or until the iterator is closed. What they raise is raised here. In a new
    thread "cuda" means device 0, so that `prepare` should name its device by number.
    """
    waiting_items = iter(items)

    def make() -> list[U]:
        """The next result, or nothing after the last."""
        return [prepare(item) for item in islice(waiting_items, 1)]

    worker = ThreadPoolExecutor(1, "qkv-prefetch")
    try:
        results = deque(worker.submit(make) for _ in range(ahead))
        while result := results.popleft().result():
            results.append(worker.submit(make))
            yield result[0]
    finally:
        worker.shutdown(cancel_futures=True)
