"""A worker: one model, and the thread that runs it for all who ask.

Between two steps of the engine it runs jobs: functions of the model, such as classifying texts.
Texts of several clients that ask for the same are given to one call. Clients are coroutines of an
event loop: they hand over jobs and requests, and are called back there.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from qkv.decode import Engine, Event, Handle, Request
from qkv.errors import UserError

MOST_TOGETHER = 256  # texts of several clients in one call
WORTH_WAKING = 64  # tokens for which a client that waits for whole texts is woken


@dataclass(eq=False)
class Job:
    """A call that a client waits for; those with the same key take a list of texts, joined."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    key: Hashable | None = None
    future: Future[Any] = field(default_factory=Future)


class Generation:
    """The requests of one client in the running batch; its events are their tokens."""

    def __init__(self, worker: Worker, requests: Sequence[Request], whole: bool) -> None:
        self._worker, self.loop, self._whole = worker, asyncio.get_running_loop(), whole
        self._arrived: asyncio.Queue[tuple[list[Event], bool]] = asyncio.Queue()
        engine = worker.engine
        assert engine is not None
        self.handles: list[Handle] = []
        try:
            self.handles += map(engine.submit, requests)
        except UserError:
            self.cancel(self.handles)
            raise

    def __aiter__(self) -> AsyncIterator[list[Event]]:
        return self.events()

    async def events(self) -> AsyncIterator[list[Event]]:
        """Yield tokens as they come, those that came together in one list, until all are done."""
        is_last = False
        while not is_last:
            events, is_last = await self._arrived.get()
            yield events
        for handle in self.handles:
            if handle.error is not None:
                raise handle.error

    async def finish(self) -> list[Handle]:
        """Wait for all requests; one who stops waiting gives them up."""
        try:
            async for _ in self:
                pass
        finally:
            self.cancel()
        return self.handles

    def cancel(self, handles: Sequence[Handle] | None = None) -> None:
        """Give up some requests, or all that are not done; rows are free at the next step."""
        self._worker.cancel(self.handles if handles is None else handles)

    def take(self) -> tuple[list[Event], bool] | None:
        """Take what the client is to hear of: events, and whether they are the last; or None."""
        is_last = all(handle.is_done for handle in self.handles)
        n_events = sum(len(handle.events) for handle in self.handles)
        if not is_last and n_events < (WORTH_WAKING if self._whole else 1):
            return None
        events: list[Event] = []
        for handle in self.handles:
            events += handle.events
            handle.events.clear()
        return events, is_last

    def hear(self, events: list[Event], is_last: bool) -> None:
        """Let the client go on with these, on its event loop."""
        self._arrived.put_nowait((events, is_last))


class Worker:
    """A model that is loaded and run in a thread of its own."""

    def __init__(self, name: str, load: Callable[[], Any]) -> None:
        self.name, self._load = name, load
        self.task: Any = None
        self.engine: Engine | None = None
        self.is_loaded: Future[None] = Future()
        self.n_users = 0  # clients that hold it; it is not unloaded meanwhile
        self._jobs: deque[Job] = deque()
        self._generations: list[Generation] = []
        self._cancelled: deque[Sequence[Handle]] = deque()
        self._closing = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"qkv {name}", daemon=True)
        self._thread.start()

    # What clients call, on their event loop

    async def loaded(self) -> Worker:
        """Wait until the model is loaded."""
        await asyncio.shield(asyncio.wrap_future(self.is_loaded))
        return self

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return function(task, *arguments), run by the worker alone."""
        return await self._ask(Job(function, arguments))

    async def gather(
        self, function: Callable[..., Sequence[Any]], texts: Sequence[Any], **settings: Hashable
    ) -> list[Any]:
        """Return function(task, texts, **settings), a result a text, joined with others' texts."""
        key = (function, *sorted(settings.items()))
        return await self._ask(Job(function, (list(texts), settings), key))

    def generate(self, requests: Sequence[Request], whole: bool = False) -> Generation:
        """Let requests join the running batch; clients of `whole` texts are seldom woken."""
        generation = Generation(self, requests, whole)
        with self._wake:
            self._generations.append(generation)
            self._wake.notify()
        return generation

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Give up requests."""
        with self._wake:
            self._cancelled.append(handles)
            self._wake.notify()

    def close(self) -> None:
        """Let the thread end when all that it was given is done, and drop the model."""
        with self._wake:
            self._closing = True
            self._wake.notify()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout)

    @property
    def n_running(self) -> int:
        """Rows of the running batch that are in use."""
        return self.engine.n_rows if self.engine else 0

    @property
    def n_waiting(self) -> int:
        """Jobs, and requests that wait for a row."""
        return len(self._jobs) + (self.engine.n_waiting if self.engine else 0)

    async def _ask(self, job: Job) -> Any:
        with self._wake:
            self._jobs.append(job)
            self._wake.notify()
        return await asyncio.wrap_future(job.future)

    # The thread

    def _work(self) -> None:
        try:
            self.task = self._load()
            self.engine = getattr(self.task, "engine", None)
        except BaseException as error:  # who waits for the model hears of it
            self.is_loaded.set_exception(error)
            return
        self.is_loaded.set_result(None)
        while self._wait():
            self._give_up()
            if self._jobs:
                self._run_jobs()
            if self._generations:
                self._step()
        self.task = self.engine = None

    def _wait(self) -> bool:
        """Wait for something to do; False: there is nothing, and nothing will come."""
        with self._wake:
            while not (self._jobs or self._generations or self._cancelled):
                if self._closing:
                    return False
                self._wake.wait()
        return True

    def _give_up(self) -> None:
        while self._cancelled and self.engine is not None:
            for handle in self._cancelled.popleft():
                self.engine.cancel(handle)

    def _step(self) -> None:
        assert self.engine is not None
        with suppress(Exception):  # of which its handles know
            self.engine.step()
        self._hand_over()

    def _hand_over(self) -> None:
        """Pass on what has come to the clients, and wake their event loop once for all of them."""
        heard: dict[asyncio.AbstractEventLoop, list[tuple[Generation, list[Event], bool]]] = {}
        for generation in list(self._generations):
            if (taken := generation.take()) is None:
                continue
            events, is_last = taken
            heard.setdefault(generation.loop, []).append((generation, events, is_last))
            if is_last:
                with self._wake:
                    self._generations.remove(generation)
        for loop, parts in heard.items():
            with suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(_tell, parts)

    def _run_jobs(self) -> None:
        """Run the first job, together with all others that ask for the same."""
        with self._wake:
            first = self._jobs.popleft()
            jobs = [first]
            if first.key is not None:
                jobs += [job for job in self._jobs if job.key == first.key]
                jobs = jobs[: max(1, MOST_TOGETHER // max(1, len(first.arguments[0])))]
                self._jobs = deque(job for job in self._jobs if job not in jobs)
        jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
        if not jobs:
            return
        if len(jobs) > 1 and self._run_together(jobs):
            return
        for job in jobs:
            try:
                job.future.set_result(self._call(job))
            except BaseException as error:  # the client's to handle
                job.future.set_exception(error)

    def _run_together(self, jobs: Sequence[Job]) -> bool:
        """Give the texts of several jobs to one call; False: one has a mistake in it."""
        texts = [text for job in jobs for text in job.arguments[0]]
        try:
            results = iter(jobs[0].function(self.task, texts, **jobs[0].arguments[1]))
        except Exception:
            return False
        for job in jobs:
            job.future.set_result([next(results) for _ in job.arguments[0]])
        return True

    def _call(self, job: Job) -> Any:
        if job.key is None:
            return job.function(self.task, *job.arguments)
        texts, settings = job.arguments
        return job.function(self.task, texts, **settings)


def _tell(parts: Sequence[tuple[Generation, list[Event], bool]]) -> None:
    """Give clients of one event loop what has come for them."""
    for generation, events, is_last in parts:
        generation.hear(events, is_last)
