"""The verbs in which a model decodes: `prefill` once a source, then `decode_one` token a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.decode.state import S, Search
from qkv.model import Cache, EncoderDecoder, Layout, Memory


def empty_cache(
    model: EncoderDecoder, memory: Memory, rows: int, length: int, fixed: bool
) -> Cache:
    """Room for `rows` outputs of each source, in the number type that attention works in."""
    key = memory.layers[0].key
    return Cache.empty(model.config, rows * key.shape[0], length, key, fixed)


def prefill(
    model: EncoderDecoder, source: Tensor, layout: Layout, prompt: Sequence[int], rows: int,
    length: int,
) -> tuple[Memory, Cache]:  # fmt: skip
    """Encode each source once, and read all of the prompt but its last token in one pass."""
    memory = model.remember(source, layout)
    cache = empty_cache(model, memory, rows, length, fixed=False)
    read(model, prompt[:-1], memory, cache)
    return memory, cache


def read(model: EncoderDecoder, tokens: Sequence[int], memory: Memory, cache: Cache) -> None:
    """Let every row see these tokens; what they predict is not asked for."""
    if tokens:
        row = torch.tensor(tokens, device=cache.store.device)
        model.decode(row.expand(cache.store.shape[2], -1), memory, cache=cache)


def decode_one(model: EncoderDecoder, tokens: Tensor, memory: Memory, cache: Cache) -> Tensor:
    """Read one token in each row, (rows,), and give logits of the next, (rows, V) float32."""
    hidden = model.decode(tokens[:, None], memory, cache=cache)
    logits: Tensor = model.output(hidden[:, -1])
    return logits.float()


def follow(cache: Cache, rows: Tensor) -> None:
    """Make each row of the cache a copy of the row that its hypothesis goes on from."""
    if isinstance(cache.length, Tensor):
        cache.select(rows)
        return
    moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
    filled = cache.store[..., : cache.length, :]
    filled[:, :, moved] = filled[:, :, rows[moved]]  # a row that stays needs no copy


def advance(model: EncoderDecoder, search: Search[S], memory: Memory, cache: Cache, state: S) -> S:
    """One step of a search: read, choose, and let each row's cache follow its hypothesis."""
    logits = decode_one(model, state.newest.flatten(), memory, cache)
    state, rows = search.step(state, logits)
    if rows is not None:
        follow(cache, rows)
    return state
