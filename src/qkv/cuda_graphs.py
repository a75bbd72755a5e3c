"""CUDA graphs: work on a GPU that is recorded once and replayed without its launches.

What was recorded on one state, a tree of tensors, serves every state of its kind, copied into its
memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")
_ONE_AT_A_TIME = threading.Lock()


def leaves(state: Any) -> Iterator[Tensor]:
    """Yield the tensors of a dataclass, field by field, those of its parts included."""
    if isinstance(state, Tensor):
        yield state
    elif is_dataclass(state):
        for field in fields(state):
            yield from leaves(getattr(state, field.name))


def kind(state: Any) -> Hashable:
    """Describe shapes, dtypes, and all values that are not tensors."""
    if isinstance(state, Tensor):
        return (state.shape, state.dtype)
    if is_dataclass(state):
        return tuple(kind(getattr(state, field.name)) for field in fields(state))
    assert isinstance(state, Hashable)
    return state


def cloned(state: S) -> S:
    """Copy a state, tensors included."""
    if isinstance(state, Tensor):
        return state.clone()  # type: ignore[return-value]
    if is_dataclass(state) and not isinstance(state, type):
        copies = {field.name: cloned(getattr(state, field.name)) for field in fields(state)}
        return replace(state, **copies)
    return state


def assign(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors into the memory of others, in one call for each dtype."""
    for dtype in {tensor.dtype for tensor in targets}:
        pairs = [
            (target, source)
            for target, source in zip(targets, sources, strict=True)
            if target.dtype == dtype
        ]
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])


def record(
    work: Callable[[], object], device: torch.device, warm_ups: int = 0, pool: Any = None
) -> Callable[[], None]:
    """Run some work a few times, then record it as a CUDA graph; return what replays it."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(warm_ups):
            work()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads (a server's, a loader's) may use the GPU meanwhile, but torch has one stream for
    # the recordings of all of them.
    with _ONE_AT_A_TIME, torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):
        work()
    return graph.replay


def renew_randomness(device: torch.device) -> None:
    """Let random numbers be drawn again after a recording that failed, from the seed on."""
    generator = torch.cuda.default_generators[device.index or 0]
    fresh = torch.Generator(device).manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())
