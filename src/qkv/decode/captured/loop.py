"""The search loop, with a growing KV cache or with fixed shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.captured.graph import Graphs
from qkv.decode.captured.state import S, Search, Task
from qkv.decode.captured.step import PromptBatch, advance, prefill
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.prompts import Generative
from qkv.model import Cache, Memory

CHECK_EVERY = 8  # steps between two looks at the output, each of which waits for the GPU
WIDTH, LENGTH = 16, 64  # sizes are rounded up to multiples of these, for few graphs

Watch = Callable[[Any], Any]
"""Called with the state every few steps; may close outputs early."""


def search_growing(
    model: Generative, search: Search[S], batch: PromptBatch, task: Task, watch: Watch | None = None
) -> list[list[Hypothesis]]:
    """Search with least work, for a CPU: a growing cache, and finished sentences leave."""
    room = batch.prompts.shape[1] + task.room
    memory, cache = prefill(model, batch, search.rows, room)
    state = search.start(task)
    sentences = torch.arange(len(batch.prompts), device=batch.prompts.device)
    hypotheses: dict[int, list[Hypothesis]] = {}
    step = 0
    while len(sentences):
        state = advance(model, search, memory, cache, state)
        step += 1
        if watch and step % CHECK_EVERY == 0:
            state = watch(state)
        n_done = int(state.done.sum())
        if n_done * 4 < len(sentences):
            continue  # moving the others would cost more than it saves
        done, still_open = state.done.nonzero()[:, 0], (~state.done).nonzero()[:, 0]
        results = search.finish(state.select(done))
        hypotheses.update(zip(sentences[done].tolist(), results, strict=True))
        sentences, state = sentences[still_open], state.select(still_open)
        memory = drop(memory, cache, still_open, search.rows)
    return [hypotheses[index] for index in range(len(hypotheses))]


def drop(memory: Memory | None, cache: Cache, kept: Tensor, rows: int) -> Memory | None:
    """Keep these sentences, each with all its rows of the cache."""
    row = torch.arange(rows, device=kept.device)
    cache.select((kept[:, None] * rows + row).flatten())
    return None if memory is None else memory.select(kept)


def search_fixed(
    model: Generative,
    search: Search[S],
    batch: PromptBatch,
    task: Task,
    graphs: Graphs,
    watch: Watch | None = None,
) -> list[list[Hypothesis]]:
    """Search with fixed shapes, for a GPU: it is only asked now and then whether all is done."""
    n_sentences, n_steps = len(batch.prompts), task.room
    batch, task = round_up(batch, task, model.config.max_length)
    memory, cache = prefill(model, batch, search.rows, batch.prompts.shape[1])
    slot = graphs.slot(model, search, memory, cache, task)
    slot.load(memory, cache, search.start(task))
    for step in range(1, n_steps + 1):
        slot.step()
        if step % CHECK_EVERY == 0:
            if watch:
                slot.state.assign(watch(slot.state))
            if bool(slot.state.done.all()):
                break
    real = torch.arange(n_sentences, device=batch.prompts.device)
    return search.finish(slot.state.select(real))


def round_up(batch: PromptBatch, task: Task, longest: int) -> tuple[PromptBatch, Task]:
    """Pad a batch to one of a few shapes, in source tokens, sentences and output tokens."""
    n_sentences, n_prompt = batch.prompts.shape
    more = few_sizes(n_sentences) - n_sentences
    batch = replace(
        batch,
        prompts=_with_more_rows(batch.prompts, more),
        first=None if batch.first is None else _with_more_rows(batch.first, more),
    )
    if batch.source is not None:
        batch = _wider_source(batch, more, longest)
    padded = replace(
        task,
        limits=F.pad(task.limits, (0, more)),
        ids=F.pad(task.ids, (0, more)),
        newest=_with_more_rows(task.newest, more),
        seen=None if task.seen is None else _with_more_rows(task.seen, more),
        past=None if task.past is None else _with_more_rows(task.past, more),
    )
    return batch, padded.with_room(multiple(n_prompt + task.room, LENGTH))


def _with_more_rows(tensor: Tensor, more: int) -> Tensor:
    """Append copies of the first row, since attention fails on an empty row."""
    return torch.cat([tensor, tensor[:1].expand(more, *tensor.shape[1:])])


def _wider_source(batch: PromptBatch, more: int, longest: int) -> PromptBatch:
    source = batch.source
    assert source is not None
    n_sentences, width = source.shape
    lengths = batch.source_lengths
    if lengths is None:
        lengths = source.new_full((n_sentences,), width)
    wider = max(width, min(multiple(width, WIDTH), longest)) - width
    return replace(
        batch,
        source=F.pad(source, (0, wider, 0, more)),
        source_lengths=F.pad(lengths, (0, more), value=1),  # attention needs at least one key
    )


def multiple(size: int, unit: int) -> int:
    """Round up to a multiple of `unit`."""
    return -(-size // unit) * unit


def few_sizes(size: int) -> int:
    """Round up to three binary digits and zeros: 1 … 8, 10, 12, 14, 16, 20, 24 …"""
    return multiple(size, 1 << max(0, (size - 1).bit_length() - 3))
