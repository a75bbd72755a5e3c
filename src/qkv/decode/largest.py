"""The largest of many scores, and log P of all: passes over the vocabulary, as few as possible.

Finding where the largest scores are takes several times as long as finding how large they are. So
the largest of each chunk is found first, and only the best chunks are looked through.
"""

from __future__ import annotations

import torch
from torch import Tensor

NOTHING = float("-inf")  # the score of an empty place
CHUNK = 128  # scores whose largest is found first
LEAST = {"cpu": 2**17, "cuda": 2**15}  # scores; the likeliest of fewer is found in one go


def log_softmax(logits: Tensor) -> Tensor:
    """Return log P, on a CPU in the memory of the logits: fresh memory takes as long again."""
    return logits.log_softmax(-1) if logits.is_cuda else torch.log_softmax(logits, -1, out=logits)


def likeliest(scores: Tensor) -> Tensor:
    """Choose the token with the largest score, the first of equal ones, (…, V) to (…)."""
    if scores.numel() < LEAST.get(scores.device.type, LEAST["cpu"]):
        return scores.argmax(dim=-1)
    start = _largest_of_chunks(scores).argmax(dim=-1, keepdim=True) * CHUNK
    values, column = _chunks(scores, start)
    return column.gather(-1, values.argmax(dim=-1, keepdim=True))[..., 0]


def top_scores(scores: Tensor, added: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find the largest of scores (B, K, V), to each row of which `added` (B, K) is added.

    Returns them and their indices among K·V, as `topk` does, (B, count).
    """
    _, beams, size = scores.shape
    if beams * size < 4 * CHUNK * count:
        values, index = (scores + added[..., None]).flatten(1).topk(count)
        return values, index
    largest = _largest_of_chunks(scores) + added[..., None]  # (B, K, V / CHUNK)
    chunk = largest.flatten(1).topk(count).indices  # (B, count)
    beam, start = chunk // largest.shape[2], chunk % largest.shape[2] * CHUNK
    values, column = _chunks(scores.flatten(1), start, beam * size, size)
    values += added.gather(1, beam).repeat_interleave(CHUNK, dim=1)
    values, place = values.topk(count)
    return values, column.gather(1, place)


def _largest_of_chunks(scores: Tensor) -> Tensor:
    """(…, V) to (…, V / CHUNK), rounded up; NaN is the largest."""
    whole = scores.shape[-1] // CHUNK * CHUNK
    largest = scores[..., :whole].unflatten(-1, (-1, CHUNK)).amax(dim=-1)
    if whole == scores.shape[-1]:
        return largest
    return torch.cat([largest, scores[..., whole:].amax(dim=-1, keepdim=True)], dim=-1)


def _chunks(
    scores: Tensor, start: Tensor, before: Tensor | int = 0, size: int = 0
) -> tuple[Tensor, Tensor]:
    """Look up the chunks that begin at `start` (…, N), and their columns, (…, N·CHUNK).

    Where rows of `size` scores are joined, `before` tells where a chunk's row begins.
    """
    size = size or scores.shape[-1]
    column = start[..., None] + torch.arange(CHUNK, device=scores.device)  # (…, N, CHUNK)
    is_past_end = (column >= size).flatten(-2)
    before = before[..., None] if isinstance(before, Tensor) else before
    column = (column.clamp(max=size - 1) + before).flatten(-2)
    return scores.gather(-1, column).masked_fill_(is_past_end, NOTHING), column
