"""Viterbi: the best sequence of labels among the valid ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Allowed = npt.NDArray[np.bool_] | Tensor


def best_path(scores: Tensor, begin: Allowed, follow: Allowed, end: Allowed) -> list[int]:
    """Find the valid labels with the highest sum of scores (T, C), as `best_paths` does."""
    lengths = torch.tensor([len(scores)], device=scores.device)
    return best_paths(scores[None], lengths, begin, follow, end)[0]


def best_paths(
    scores: Tensor, lengths: Tensor, begin: Allowed, follow: Allowed, end: Allowed
) -> list[list[int]]:
    """Find the valid labels of each sequence with the highest sum of scores (B, T, C).

    Label c may be first where begin[c], last where end[c], and right after b where follow[b, c].
    Of equally good sequences the one with the lowest labels wins, compared from the last backwards.
    """
    if scores.shape[1] == 0:
        return [[] for _ in lengths]
    lengths = lengths.to(scores.device)
    # Each label's loss against the best at its position: the best labels lose exactly 0, so that
    # no rounding can hide them where they are valid.
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    losses = scores - scores.amax(dim=-1, keepdim=True)
    total, pointers = _advance(losses, lengths, _barrier(begin, scores), _barrier(follow, scores))
    total, last = (total + _barrier(end, scores)).max(dim=-1)
    _check(total, lengths)
    path = [last]
    for pointer in reversed(pointers):
        path.append(pointer.gather(1, path[-1][:, None])[:, 0])
    rows = torch.stack(path[::-1], dim=1).tolist()
    return [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]


def _advance(
    losses: Tensor, lengths: Tensor, begin: Tensor, follow: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return the best sum (B, C) for each last label, and for each step the label before."""
    n_steps, n_labels = losses.shape[1:]
    stay = torch.arange(n_labels, device=losses.device)
    total = losses[:, 0] + begin
    pointers = []
    for step in range(1, n_steps):
        reached, pointer = (total[:, :, None] + follow).max(dim=1)  # (B, C)
        inside = (step < lengths)[:, None]
        total = torch.where(inside, reached + losses[:, step], total)
        pointers.append(torch.where(inside, pointer, stay))
    return total, pointers


def _barrier(allowed: Allowed, scores: Tensor) -> Tensor:
    """Return what to add to scores: 0 where allowed, -∞ elsewhere."""
    flags = torch.as_tensor(allowed, device=scores.device)
    return torch.zeros_like(flags, dtype=scores.dtype).masked_fill(~flags, -torch.inf)


def _check(total: Tensor, lengths: Tensor) -> None:
    missing = (~total.isfinite() & (lengths > 0)).nonzero().flatten().tolist()
    if missing:
        row = missing[0]
        length = int(lengths[row])
        raise ValueError(f"row {row} has no valid labels of length {length} with finite scores")
