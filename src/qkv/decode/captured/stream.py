"""Streaming: tokens one by one, and a KV cache that later prompts reuse."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import torch

from qkv.config import DecodeConfig
from qkv.decode.captured.generate import build_task
from qkv.decode.captured.graph import Graphs
from qkv.decode.captured.greedy import GreedyState, build_greedy
from qkv.decode.captured.loop import LENGTH, multiple
from qkv.decode.captured.state import Search, Task
from qkv.decode.captured.step import advance, empty_cache
from qkv.decode.prompts import read
from qkv.decode.request import prompt_limits
from qkv.model import Cache, Decoder, evaluating


@dataclass
class Remembered:
    """Tokens that a model has read, and their KV cache."""

    cache: Cache | None = None
    tokens: list[int] = field(default_factory=list)
    n_read: int = 0  # tokens read so far, without those that were reused

    def recall(self, model: Decoder, prompt: Sequence[int]) -> Cache:
        """Return a cache of the prompt except its last token, reading only what is new."""
        if self.cache is None:
            self.cache = empty_cache(model, 1, model.config.max_length)
        device = self.cache.store.device
        n_common = _common(self.tokens, prompt[:-1])
        self.cache.length = n_common
        del self.tokens[n_common:]  # after an interruption below, no more than this was read
        fresh = list(prompt[n_common:-1])
        if fresh:
            read(model, torch.tensor([fresh], device=device), None, self.cache)
        self.tokens, self.n_read = list(prompt[:-1]), self.n_read + len(fresh)
        return self.cache


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Count the tokens that two sequences share at their beginning."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


@torch.inference_mode()
def stream(
    model: Decoder,
    prompt: Sequence[int],
    config: DecodeConfig,
    max_length: int | None = None,
    *,
    ends: Sequence[int] = (),
    suppress: Sequence[int] = (),
    id: int = 0,
    fixed: bool | None = None,
    graphs: Graphs | None = None,
    remembered: Remembered | None = None,
) -> Iterator[int]:
    """Yield the tokens after one prompt as they are chosen: those of `complete`, without the end.

    With `remembered`, tokens that it shares with the prompt are not read again, and it then holds
    the prompt and the output.
    """
    remembered = Remembered() if remembered is None else remembered
    device = next(model.parameters()).device
    limits = prompt_limits(model.config, config, [prompt], max_length)
    task = build_task(model.config, config, [prompt], limits, [id], device)
    ends = tuple(ends) or model.config.ends
    search = build_greedy(config, ends, tuple(suppress))
    with evaluating(model):
        cache = remembered.recall(model, prompt)
        if device.type == "cuda" if fixed is None else fixed:
            states = _fixed_states(model, search, cache, task, graphs or Graphs())
        else:
            states = _growing_states(model, search, cache, task)
        newest = prompt[-1]
        with closing(states):
            for state in states:
                remembered.tokens.append(newest)  # the step that chose the next one has read it
                newest = int(state.newest[0, 0])
                if newest in ends:
                    return
                yield newest


def _growing_states(
    model: Decoder, search: Search[GreedyState], cache: Cache, task: Task
) -> Generator[GreedyState]:
    state = search.start(task)
    while not bool(state.done[0]):
        state = advance(model, search, None, cache, state)
        yield state


def _fixed_states(
    model: Decoder, search: Search[GreedyState], cache: Cache, task: Task, graphs: Graphs
) -> Generator[GreedyState]:
    """Run captured steps on a copy of the cache, and copy its new part back at the end."""
    assert isinstance(cache.length, int)
    begin = cache.length
    task = task.with_room(multiple(begin + 1 + task.room, LENGTH))
    slot = graphs.slot(model, search, None, cache, task)
    slot.load(None, cache, search.start(task))
    steps = 0
    try:
        while not bool(slot.state.done[0]):
            slot.step()
            steps += 1
            yield slot.state
    finally:
        cache.length = end = begin + steps
        cache.store[..., begin:end, :] = slot.cache.store[..., begin:end, :]
