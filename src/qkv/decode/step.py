"""The verbs in which a model decodes: `prefill` once a batch, then `decode_one` token a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.decode.state import S, Search
from qkv.model import Cache, Decoder, EncoderDecoder, Layout, Memory

Generative = EncoderDecoder | Decoder


@dataclass(frozen=True)
class Batch:
    """What is to be continued: prompts and, for an encoder-decoder, the sources they belong to."""

    prompts: Tensor  # (B, P) int64: padded in front, so that all end in the last column
    first: Tensor | None = None  # (B, 1) int64: where each prompt begins; None: no padding
    source: Tensor | None = None  # (B, S) int64
    source_lengths: Tensor | None = None  # (B,) int64; None: no padding


def prefill(model: Generative, batch: Batch, rows: int, length: int) -> tuple[Memory | None, Cache]:
    """Encode each source and read each prompt but for its last token, once; then `rows` of each."""
    memory = None
    if isinstance(model, EncoderDecoder):
        assert batch.source is not None
        memory = model.remember(batch.source, Layout(lengths=batch.source_lengths))
    cache = empty_cache(model, len(batch.prompts), length)
    cache.first = batch.first
    if batch.prompts.shape[1] > 1:
        read(model, batch.prompts[:, :-1], memory, cache)
    if rows > 1:
        each = torch.arange(len(batch.prompts), device=batch.prompts.device)
        cache.select(each.repeat_interleave(rows))
    return memory, cache


def empty_cache(model: Generative, rows: int, length: int, fixed: bool = False) -> Cache:
    """Room for `rows` outputs, in the number type that attention works in."""
    weight = next(model.parameters())
    place = weight.device.type
    half = torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else weight.dtype
    return Cache.empty(model.config, rows, length, weight.new_empty(0, dtype=half), fixed)


def read(model: Generative, tokens: Tensor, memory: Memory | None, cache: Cache) -> Tensor:
    """Let every row see these tokens, (rows, T); what comes out of the last layer, (rows, T, D)."""
    if isinstance(model, Decoder):
        return model.hidden(tokens, cache=cache)
    assert memory is not None
    return model.decode(tokens, memory, cache=cache)


def decode_one(model: Generative, tokens: Tensor, memory: Memory | None, cache: Cache) -> Tensor:
    """Read one token in each row, (rows,), and give logits of the next, (rows, V) float32."""
    hidden = read(model, tokens[:, None], memory, cache)
    logits: Tensor = model.output(hidden[:, -1])
    return logits.float()


def advance(
    model: Generative, search: Search[S], memory: Memory | None, cache: Cache, state: S
) -> S:
    """One step of a search: read, choose, and let each row's cache follow its hypothesis."""
    logits = decode_one(model, state.newest.flatten(), memory, cache)
    state, rows = search.step(state, logits)
    if rows is not None:
        cache.follow(rows)
    return state
