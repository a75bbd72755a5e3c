import threading
from collections.abc import Iterator
from itertools import count

import pytest

from qkv.data import prefetch


def double(number: int) -> int:
    return 2 * number


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("qkv-prefetch")]


def test_results_come_in_order_and_end() -> None:
    assert list(prefetch(range(100), double, ahead=3)) == list(range(0, 200, 2))
    assert list(prefetch([], double)) == []
    assert not workers()


def test_falsy_results_are_results() -> None:
    assert list(prefetch([1, 2], lambda _: None)) == [None, None]


def test_work_is_done_in_another_thread() -> None:
    threads = list(prefetch(range(3), lambda _: threading.get_ident()))
    assert threading.get_ident() not in threads


def test_no_more_than_asked_for_is_prepared_ahead() -> None:
    started = threading.Semaphore(0)
    prepared: list[int] = []

    def prepare(number: int) -> int:
        prepared.append(number)
        started.release()
        return number

    results = prefetch(count(), prepare, ahead=3)
    assert next(results) == 0
    for _ in range(4):  # the one handed out and three ahead
        assert started.acquire(timeout=10)
    assert not started.acquire(timeout=0.05)
    assert prepared == [0, 1, 2, 3]
    results.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", ["items", "prepare"])
def test_an_exception_comes_after_what_was_made_before_it(place: str) -> None:
    def items() -> Iterator[int]:
        yield from (0, 1)
        if place == "items":
            raise KeyError("broken")
        yield 2

    def prepare(number: int) -> int:
        if number == 2:
            raise KeyError("broken")
        return number

    results = prefetch(items(), prepare)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(KeyError, match="broken"):
        next(results)
    assert not workers()


def test_stopping_early_ends_the_thread() -> None:
    results = prefetch(count(), double, ahead=2)
    assert next(results) == 0
    assert len(workers()) == 1
    results.close()  # type: ignore[attr-defined]
    assert not workers()


def test_an_exception_in_the_loop_ends_the_thread() -> None:
    def train() -> None:
        for number in prefetch(count(), double):
            if number == 10:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        train()
    del train
    for thread in workers():  # ends by itself once the traceback that held the loop is gone
        thread.join(timeout=10)
    assert not workers()
