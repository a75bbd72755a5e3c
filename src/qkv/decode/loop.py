"""Running a search to its end, with a cache that grows or in tensors of fixed shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.graph import Graphs
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.state import S, Search, Task
from qkv.decode.step import advance, prefill, read
from qkv.model import Cache, EncoderDecoder, Layout, Memory

CHECK_EVERY = 8  # steps between two questions to the GPU whether all sentences are done
WIDTH, LENGTH = 16, 64  # sizes are rounded up to multiples of these, so that few graphs serve all


@dataclass(frozen=True)
class Batch:
    """Sources to decode, and the prompt that every output begins with."""

    source: Tensor  # (B, S) int64
    lengths: Tensor | None  # (B,) int64; None: no padding
    prompt: Sequence[int]  # BOS and the forced prefix


def search_growing(
    model: EncoderDecoder, search: Search[S], batch: Batch, task: Task
) -> list[list[Hypothesis]]:
    """Least work, as suits a CPU: attention sees what is filled, and done sentences leave."""
    layout, room = Layout(lengths=batch.lengths), len(batch.prompt) + task.room
    memory, cache = prefill(model, batch.source, layout, batch.prompt, search.rows, room)
    state = search.start(task)
    sentences = torch.arange(len(batch.source), device=batch.source.device)
    found: dict[int, list[Hypothesis]] = {}
    while len(sentences):
        state = advance(model, search, memory, cache, state)
        n_done = int(state.done.sum())
        if n_done * 4 < len(sentences):
            continue  # to move the others would cost more than it saves
        done, still_open = state.done.nonzero()[:, 0], (~state.done).nonzero()[:, 0]
        results = search.finish(state.select(done))
        found.update(zip(sentences[done].tolist(), results, strict=True))
        sentences, state = sentences[still_open], state.select(still_open)
        memory = drop(memory, cache, still_open, search.rows)
    return [found[index] for index in range(len(found))]


def drop(memory: Memory, cache: Cache, kept: Tensor, rows: int) -> Memory:
    """Keep these sentences, each with all its rows in the cache."""
    row = torch.arange(rows, device=kept.device)
    cache.select((kept[:, None] * rows + row).flatten())
    return memory.select(kept)


def search_fixed(
    model: EncoderDecoder, search: Search[S], batch: Batch, task: Task, graphs: Graphs
) -> list[list[Hypothesis]]:
    """The same work each step, as suits a GPU: nothing is asked of it but "all done?" at times."""
    n_sentences, n_steps = len(batch.source), task.room
    batch, task = round_up(batch, task, model.config.max_length)
    memory = model.remember(batch.source, Layout(lengths=batch.lengths))
    slot = graphs.slot(model, search, memory, task)
    slot.load(memory, search.start(task))
    read(model, batch.prompt[:-1], slot.memory, slot.cache)
    for step in range(1, n_steps + 1):
        slot.step()
        if step % CHECK_EVERY == 0 and bool(slot.state.done.all()):
            break
    real = torch.arange(n_sentences, device=batch.source.device)
    return search.finish(slot.state.select(real))


def round_up(batch: Batch, task: Task, longest: int) -> tuple[Batch, Task]:
    """Pad a batch to one of a few shapes: more source tokens, more sentences, more room."""
    n_sentences, width = batch.source.shape
    lengths = batch.lengths
    if lengths is None:
        lengths = batch.source.new_full((n_sentences,), width)
    wider = max(width, min(multiple(width, WIDTH), longest)) - width
    more = few_sizes(n_sentences) - n_sentences
    padded = Batch(
        F.pad(batch.source, (0, wider, 0, more)),
        F.pad(lengths, (0, more), value=1),  # one token to look at, or attention is undefined
        batch.prompt,
    )
    limits, ids = F.pad(task.limits, (0, more)), F.pad(task.ids, (0, more))
    room = multiple(len(batch.prompt) + task.room, LENGTH)
    return padded, replace(task, limits=limits, ids=ids, room=room)


def multiple(size: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-size // unit) * unit


def few_sizes(size: int) -> int:
    """The next number with three binary digits and zeros: 1 … 8, 10, 12, 14, 16, 20, 24 …"""
    return multiple(size, 1 << max(0, (size - 1).bit_length() - 3))
