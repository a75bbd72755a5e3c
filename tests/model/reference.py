"""Attention in the plainest words, to hold the package's against, and the cases to hold."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from operator import mul

import torch
from hypothesis import strategies as st
from torch import Tensor

from qkv.model import Mask


def sees(mask: Mask, row: int, query: int, key: int) -> bool:
    """Whether a query of a row may see a key: each clause of the mask by itself."""
    place = query + int(mask.start)
    if mask.causal and key > place:
        return False
    if mask.window and abs(key - place) >= mask.window:
        return False
    if mask.key_lengths is not None and key >= mask.key_lengths[row]:
        return False
    if mask.query_offsets is None or mask.key_offsets is None:
        return True
    segment = bisect_right(mask.query_offsets.tolist(), query)
    return segment == bisect_right(mask.key_offsets.tolist(), key)


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, bias: Tensor | None
) -> Tensor:
    """Σⱼ softmax(qᵢ·kⱼ·scale + bias)ⱼ vⱼ over the keys that are seen, one number at a time."""
    q, k, v = query.tolist(), key.tolist(), value.tolist()
    groups = query.shape[1] // key.shape[1]
    out = torch.zeros_like(query)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, query.shape[:3])).tolist():
        g = h // groups
        seen = [j for j in range(key.shape[2]) if sees(mask, b, i, j)]
        scores = [scale * sum(map(mul, q[b][h][i], k[b][g][j])) for j in seen]
        if bias is not None:
            scores = [s + float(bias[0, h, i, j]) for s, j in zip(scores, seen, strict=True)]
        total = sum(map(math.exp, scores))
        for j, score in zip(seen, scores, strict=True):
            out[b, h, i] += math.exp(score) / total * torch.tensor(v[b][g][j], dtype=out.dtype)
    return out


@dataclass(frozen=True)
class Case:
    """A mask and the sizes of what it masks."""

    mask: Mask
    batch: int
    n_queries: int
    n_keys: int


KINDS = ("plain", "padded", "cached", "packed", "packed cross")


@st.composite
def cases(draw: st.DrawFn, kind: str = "") -> Case:
    """Masks of one kind that the models make, or of any kind."""
    kind = kind or draw(st.sampled_from(KINDS))
    if kind.startswith("packed"):
        return draw(_packed(cross=kind == "packed cross"))
    causal, window = draw(st.booleans()), draw(st.sampled_from([0, 1, 3]))
    batch, n_queries, n_keys = (draw(st.integers(1, most)) for most in (3, 6, 7))
    lengths, start = None, 0
    if kind == "padded":
        lengths = torch.tensor([draw(st.integers(0, n_keys)) for _ in range(batch)])
    if kind == "cached":
        start = draw(st.integers(0, n_keys))
        start = torch.tensor(start) if draw(st.booleans()) else start
    mask = Mask(causal, key_lengths=lengths, start=start, window=window)
    return Case(mask, batch, n_queries, n_keys)


@st.composite
def _packed(draw: st.DrawFn, cross: bool) -> Case:
    sizes = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3)
    targets, sources = zip(*draw(sizes), strict=True)
    queries, keys = _offsets((*targets, 1)), _offsets((*sources, 1))
    if cross:
        mask = Mask(query_offsets=queries, key_offsets=keys)
        return Case(mask, 1, int(queries[-1]), int(keys[-1]))
    causal, window = draw(st.booleans()), draw(st.sampled_from([0, 1, 3]))
    mask = Mask(causal, query_offsets=queries, key_offsets=queries, window=window)
    return Case(mask, 1, int(queries[-1]), int(queries[-1]))


def _offsets(sizes: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *sizes]).cumsum(0).to(torch.int32)
