"""How likely texts go on in certain ways, reading what they have in common only once.

Few-shot prompts begin with the same examples, and the options of one question with the same
prompt: the first are kept in the cache, the second are one row of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from qkv.decode.generate import evaluating
from qkv.model import Cache, Decoder

BATCH_TOKENS = {"cpu": 4096, "cuda": 65_536}  # of what differs, and
KEPT = {"cpu": 2**28, "cuda": 2**33}  # numbers in the cache, for all rows of a batch
LEAST_SHARED = 16  # tokens; to keep fewer would be more trouble than to read them

Inputs = tuple[int, ...]


def common(sequences: Sequence[Sequence[int]]) -> int:
    """How many tokens all sequences begin with in common."""
    first, last = min(map(list, sequences)), max(map(list, sequences))
    count = 0
    for one, other in zip(first, last, strict=False):
        if one != other:
            break
        count += 1
    return count


@torch.inference_mode()
def continuation_log_probabilities(
    model: Decoder, sequences: Sequence[Sequence[int]], starts: Sequence[int]
) -> list[list[float]]:
    """log P of the tokens of each sequence from its start on, given those before; none may be 0.

    No sequence may be longer than the context.
    """
    if not sequences:
        return []
    first: dict[Inputs, int] = {}  # of each distinct input, the place whence it is asked about
    for tokens, start in zip(sequences, starts, strict=True):
        inputs = tuple(tokens[:-1])
        first[inputs] = min(start, first.get(inputs, start))
    shared = min(common(list(first)), min(starts) - 1)
    shared = shared if shared >= LEAST_SHARED and len(first) > 1 else 0
    hidden: dict[Inputs, Tensor] = {}
    with evaluating(model):
        kept = _read(model, min(first)[:shared]) if shared else None
        for rows in _batches(model, sorted(first, key=len, reverse=True), shared):
            for inputs, vectors in zip(rows, _hidden(model, rows, shared, kept), strict=True):
                # Token t is foretold by what stands at t - 1.
                hidden[inputs] = vectors[first[inputs] - 1 - shared : len(inputs) - shared].clone()
        return [
            _gained(model, hidden[tuple(tokens[:-1])], tokens, start)
            for tokens, start in zip(sequences, starts, strict=True)
        ]


def _read(model: Decoder, tokens: Inputs) -> Cache:
    """What all sequences begin with, in a cache of one row."""
    weight = next(model.parameters())
    cache = Cache.empty(model.config, 1, len(tokens), weight)
    model.hidden(torch.tensor([tokens], device=weight.device), cache=cache)
    return cache


def _batches(model: Decoder, rows: list[Inputs], shared: int) -> Iterator[list[Inputs]]:
    """Rows of similar length, the longest first, as many as there is room for."""
    device, config = next(model.parameters()).device.type, model.config
    each = 2 * config.n_decoder_layers * config.kv_heads * config.d_head  # numbers for a token
    while rows:
        width = max(1, len(rows[0]) - shared)
        fitting = KEPT[device] // (each * len(rows[0])) if shared else len(rows)
        count = max(1, min(BATCH_TOKENS[device] // width, fitting))
        yield rows[:count]
        rows = rows[count:]


def _hidden(model: Decoder, rows: list[Inputs], shared: int, kept: Cache | None) -> Tensor:
    """The vectors of what follows the shared beginning, (B, T, D); what pads a row is not seen."""
    weight, width = next(model.parameters()), max(1, len(rows[0]) - shared)
    table = torch.zeros((len(rows), width), dtype=torch.int64)
    for place, row in zip(table, rows, strict=True):
        place[: len(row) - shared] = torch.tensor(row[shared:], dtype=torch.int64)
    if kept is None:
        return model.hidden(table.to(weight.device))
    cache = Cache.empty(model.config, len(rows), shared + width, weight)
    cache.store[..., :shared, :] = kept.store
    cache.length = shared
    return model.hidden(table.to(weight.device), cache=cache)


def _gained(model: Decoder, hidden: Tensor, tokens: Sequence[int], start: int) -> list[float]:
    labels = torch.tensor(tokens[start:], device=hidden.device)
    logits = model.output(hidden[len(hidden) - len(labels) :])
    found: list[float] = logits.float().log_softmax(-1).gather(1, labels[:, None])[:, 0].tolist()
    return found
