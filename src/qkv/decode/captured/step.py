"""Model calls of decoding: `prefill` once for a batch, then `decode_one` for each token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.decode.captured.state import S, Search
from qkv.decode.prompts import Generative, attention_dtype, read
from qkv.model import Cache, EncoderDecoder, Layout, Memory


@dataclass(frozen=True)
class PromptBatch:
    """Prompts to continue and, for an encoder-decoder, their sources."""

    prompts: Tensor  # (B, P) int64: left-padded, so that all end in the last column
    first: Tensor | None = None  # (B, 1) int64: where each prompt begins; None: no padding
    source: Tensor | None = None  # (B, S) int64
    source_lengths: Tensor | None = None  # (B,) int64; None: no padding


def prefill(
    model: Generative, batch: PromptBatch, rows: int, length: int
) -> tuple[Memory | None, Cache]:
    """Encode each source and read each prompt except its last token; then copy each to `rows`."""
    memory = None
    if isinstance(model, EncoderDecoder):
        assert batch.source is not None
        memory = model.remember(batch.source, Layout(lengths=batch.source_lengths))
    cache = empty_cache(model, len(batch.prompts), length)
    cache.first = batch.first
    if batch.prompts.shape[1] > 1:
        read(model, batch.prompts[:, :-1], memory, cache)
    if rows > 1:
        sentences = torch.arange(len(batch.prompts), device=batch.prompts.device)
        cache.select(sentences.repeat_interleave(rows))
    return memory, cache


def empty_cache(model: Generative, rows: int, length: int, fixed: bool = False) -> Cache:
    """Allocate a KV cache for `rows` outputs, in the dtype of attention."""
    like = next(model.parameters()).new_empty(0, dtype=attention_dtype(model))
    return Cache.empty(model.config, rows, length, like, fixed)


def decode_one(model: Generative, tokens: Tensor, memory: Memory | None, cache: Cache) -> Tensor:
    """Read one token in each row, (rows,), and return logits of the next, (rows, V) float32."""
    hidden = read(model, tokens[:, None], memory, cache)
    logits: Tensor = model.output(hidden[:, -1])
    return logits.float()


def advance(
    model: Generative, search: Search[S], memory: Memory | None, cache: Cache, state: S
) -> S:
    """Run one step of a search: read, choose, and reorder the cache's rows."""
    logits = decode_one(model, state.newest.flatten(), memory, cache)
    state, rows = search.step(state, logits)
    if rows is not None:
        cache.follow(rows)
    return state
