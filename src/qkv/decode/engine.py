"""The engine: requests join a running batch at any step, and leave it when they are done.

Translating a file, streaming an answer and serving many users are the same loop: `submit` requests,
`step` until they are done, or `cancel` them. A request's result does not depend on its neighbours.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.allocator import keep_freed_memory
from qkv.decode.lane import Lane
from qkv.decode.prompts import LEAST_SHARED, Generative, Prefill, bytes_per_slot, common
from qkv.decode.request import Event, Handle, Request
from qkv.errors import UserError
from qkv.model import evaluating


class Limits(NamedTuple):
    """What a device can do at the same time without losing speed."""

    rows: int  # hypotheses that run
    prefill: int  # tokens of sources or prompts, padding included, that are read together
    chunk: int  # tokens of each prompt that are read between two steps of those that run already


LIMITS = {"cpu": Limits(128, 2048, 256), "cuda": Limits(512, 16_384, 2048)}
JOIN_EVERY = 8  # steps of fixed shape; those that wait meanwhile are read together
RUN_AHEAD = 8  # steps of fixed shape that a GPU is given before the host prepares others to join
SHARE_OF_MEMORY = 0.25  # of the device, for keys and values
KEPT_SHARE = 0.25  # of that, for prefixes of later prompts


class Engine:
    """Runs requests on one model; any thread may submit them, one at a time runs a step."""

    def __init__(
        self,
        model: Generative,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        chunk: int | None = None,
        fixed: bool | None = None,
        compiled: bool | None = None,
    ) -> None:
        """Run `model`; `fixed` keeps the shapes of steps fixed, as is usual on a GPU.

        There, steps that run often are compiled in the background; `compiled` compiles all of them
        before they run, or none.
        """
        self.device = device = next(model.parameters()).device
        if device.type == "cpu":
            keep_freed_memory()
        limits = LIMITS[device.type]
        self.model, self.max_rows = model, max_rows or limits.rows
        self.chunk, self._prefill_tokens = chunk or limits.chunk, limits.prefill
        self.max_bytes = max_bytes or int(SHARE_OF_MEMORY * _memory(device))
        self.fixed = device.type == "cuda" if fixed is None else fixed
        self.compiled = compiled
        self._queue: deque[Handle] = deque()
        self._lanes: dict[int, Lane] = {}
        self._prefill: Prefill | None = None
        self._n_steps = 0  # since requests joined
        self._kept: deque[tuple[tuple[int, ...], Tensor]] = deque()  # the newest last
        self._version = 0  # of the weights that these are of
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the engine with its model and settings, and without requests and locks."""
        settings = self.max_rows, self.max_bytes, self.chunk, self.fixed, self.compiled
        return Engine, (self.model, *settings)

    # What clients call

    def submit(self, request: Request) -> Handle:
        """Queue a request; it joins the running batch at the next step that has room."""
        self._check(request)
        handle = Handle(request)
        self._queue.append(handle)
        return handle

    def cancel(self, handle: Handle) -> None:
        """Stop a request with what has come of it; its rows are free at the next step."""
        with self._lock:
            if not handle.is_done:
                handle.finish("cancelled")

    def step(self) -> list[Event]:
        """Let requests join and leave, and generate the next token of all that run."""
        with self._lock, evaluating(self.model), torch.inference_mode(), self._current_device():
            try:
                events = [*self._drop_done(), *self._admit()]
                self._n_steps += 1
                running = [lane for lane in self._lanes.values() if not lane.is_idle]
                events += [event for lane in running for event in lane.step()]
                events += self._drop_done()
                for event in events:
                    event.handle.events.append(event)
            except BaseException as error:
                self._fail(error)
                raise
        return events

    def run(
        self,
        requests: Iterable[Request],
        progress: Callable[[int], None] | None = None,
        is_over: Callable[[Event], bool] | None = None,
    ) -> list[Handle]:
        """Run requests to their ends; `progress` is called with the number done since last time.

        `is_over` is asked at each token whether its request shall stop there.
        """
        events: deque[Event] = deque()  # of all of these; another thread may run the step
        handles = [Handle(request, events=events) for request in requests]
        for handle in handles:
            self._check(handle.request)
        # Those of similar length are read together, with little padding.
        self._queue.extend(sorted(handles, key=_size, reverse=True))
        waiting = set(handles)
        while waiting:
            with self._lock:
                if not events:
                    self.step()
            n_before = len(waiting)
            while events:
                event = events.popleft()
                if is_over and is_over(event):
                    self.cancel(event.handle)
                if event.handle.is_done:
                    waiting.discard(event.handle)
            if progress and len(waiting) < n_before:
                progress(n_before - len(waiting))
            for handle in islice(waiting, 1):
                if handle.error is not None:  # one that fails takes all others with it
                    raise handle.error
        return handles

    def stream(self, handle: Handle) -> Iterator[Event]:
        """Yield a request's tokens as they come; who stops listening cancels it."""
        try:
            while True:
                while handle.events:
                    yield handle.events.popleft()
                with self._lock:
                    if handle.error is not None:
                        raise handle.error
                    if handle.is_done and not handle.events:
                        return
                    if not handle.events:
                        self.step()
        finally:
            self.cancel(handle)

    @property
    def n_rows(self) -> int:
        """Number of rows that run: the hypotheses of all requests that have joined."""
        return sum(lane.n_running * lane.beams for lane in list(self._lanes.values()))

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait for a row, or whose prompts are being read."""
        prefill = self._prefill
        return len(self._queue) + (len(prefill.handles) if prefill else 0)

    @property
    def is_compiling(self) -> bool:
        """Whether a step is being compiled in the background; the plain one serves meanwhile."""
        return any(lane.is_compiling for lane in self._lanes.values())

    def _current_device(self) -> AbstractContextManager[object]:
        """Make the model's GPU the one that streams and graphs belong to."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _check(self, request: Request) -> None:
        context, n_prompt = self.model.config.max_length, len(request.prompt)
        if request.limit < 1 or not n_prompt:
            raise UserError("A request needs a prompt of at least one token and room for another.")
        if n_prompt + request.limit > context:
            raise UserError(
                f"A prompt of {n_prompt:,} tokens and {request.limit:,} more do not fit into the "
                f"model's context of {context:,}; shorten the prompt, or ask for fewer."
            )

    # Joining and leaving

    def _admit(self) -> list[Event]:
        """Read the prompts of waiting requests, and let them join when that is done."""
        if self._prefill is None:
            self._prefill = self._next_prefill()
        if self._prefill is None:
            return []
        prefill = self._prefill
        runs = not all(lane.is_idle for lane in self._lanes.values())
        self._run_ahead()
        if prefill.n_left:
            prefill.advance(self.model, self.chunk if runs else prefill.n_left)
        if prefill.n_left:
            return []
        self._prefill, self._n_steps = None, 0
        lane = self._lane(prefill.handles[0].request.beams)
        return [*lane.join(prefill), *lane.drop_done()]  # of those cancelled while it was read

    def _next_prefill(self) -> Prefill | None:
        """Take as many requests from the queue as there is room for."""
        while self._queue and self._queue[0].is_done:
            self._queue.popleft()
        idle = all(lane.is_idle for lane in self._lanes.values())
        if not self._queue or (self.fixed and not idle and self._n_steps < JOIN_EVERY):
            return None
        beams = self._queue[0].request.beams
        lane = self._lane(beams)
        free = (self.max_rows - self.n_rows) // beams
        if lane.is_idle:
            free = max(free, 1)
        # With more waiting than fit, few large groups are read faster than many small ones.
        if len(self._queue) > free and free * beams < self.max_rows // 4 and not lane.is_idle:
            return None
        known = self._known(self._queue[0].request.prompt)
        taken: list[Handle] = []
        while self._queue and len(taken) < (1 if known is not None else free):
            handle = self._queue[0]
            if handle.request.beams != beams or not self._fits(lane, [*taken, handle]):
                break
            self._queue.popleft()
            if not handle.is_done:
                taken.append(handle)
        if not taken:
            return None
        self._run_ahead()
        return Prefill.begin(self.model, taken, known)

    def _run_ahead(self) -> None:
        """Keep a GPU busy with those that run while the host is busy with those that join."""
        for lane in self._lanes.values() if self.fixed else ():
            if not lane.is_idle:
                lane.run_ahead(RUN_AHEAD)

    def _fits(self, lane: Lane, joining: list[Handle]) -> bool:
        """Whether requests fit into the budgets; one that is alone always does."""
        if len(joining) > 1 and len(joining) * max(map(_size, joining)) > self._prefill_tokens:
            return False
        together = [*(handle for handle in lane.handles if not handle.is_done), *joining]
        slots = len(together) * max(handle.request.slots for handle in together)
        return len(together) == 1 or slots * bytes_per_slot(self.model) <= self.max_bytes

    def _lane(self, beams: int) -> Lane:
        if beams not in self._lanes:
            self._lanes[beams] = Lane(self.model, beams, self.fixed, self.compiled, self._leaves)
        return self._lanes[beams]

    def _drop_done(self) -> list[Event]:
        for lane in self._lanes.values():
            for handle in lane.handles:
                if handle.is_done:
                    self._leaves(lane, handle)
        return [event for lane in self._lanes.values() for event in lane.drop_done(at_once=False)]

    def _leaves(self, lane: Lane, handle: Handle) -> None:
        """Keep what was read for a request that is done, if it asks for that."""
        if handle.request.keep and not handle.is_kept and handle.tokens:
            self._keep(lane, handle)

    def _fail(self, error: BaseException) -> None:
        """Give up all requests, since rows may be half written; who streams one hears why."""
        prefilling = self._prefill.handles if self._prefill else ()
        running = [handle for lane in self._lanes.values() for handle in lane.handles]
        for handle in [*running, *prefilling, *self._queue]:
            if not handle.is_done:
                handle.finish("cancelled")
                handle.error = error
        self._queue.clear()
        self._prefill = None
        self._lanes.clear()

    # Prefixes of later prompts

    def _keep(self, lane: Lane, handle: Handle) -> None:
        """Keep the keys of what was read, and drop the oldest ones over the budget."""
        handle.is_kept = True
        tokens = (*handle.request.prompt, *handle.tokens[:-1])
        self._kept = deque(x for x in self._kept if x[0] != tokens[: len(x[0])])
        self._kept.append((tokens, lane.keys_of(handle, len(tokens))))
        budget = KEPT_SHARE * self.max_bytes
        while len(self._kept) > 1 and sum(keys.nbytes for _, keys in self._kept) > budget:
            self._kept.popleft()

    def _known(self, prompt: tuple[int, ...]) -> Tensor | None:
        """Find the kept keys that a prompt begins with, (layers, 2, 1, G, L, D/H)."""
        weights = (weight for weight in self.model.parameters() if not weight.is_inference())
        version = sum(weight._version for weight in weights)
        if version != self._version:  # weights were changed: these keys are of other ones
            self._kept.clear()
            self._version = version
        best = max(
            ((common([tokens, prompt[:-1]]), keys) for tokens, keys in self._kept),
            key=lambda found: found[0],
            default=None,
        )
        if best is None or best[0] < LEAST_SHARED:
            return None
        return best[1][:, :, None, :, : best[0]]


def _size(handle: Handle) -> int:
    return max(len(handle.request.source), len(handle.request.prompt))


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
