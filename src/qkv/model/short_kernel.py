"""Triton kernels for the attention of short packed sequences, forward and backward.

One program holds all scores of one sequence and head: nothing is computed in parts, and nothing but
Q, K and V is kept for the backward pass. A launch serves the sequences of one range of lengths, so
that short ones do not fill large tiles.
Shapes: N tokens, M sequences, H heads, G key/value heads, D/H the size of a head.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST = 128  # whose scores fit into the registers of one program
TILES = (32, 64, LONGEST)


@triton.jit
def _read(tensor, start, n_tokens, head, row_stride, head_stride, T: tl.constexpr, D: tl.constexpr):
    """Read the tokens of a sequence from (N, H, D/H), and zeros after them, (T, D)."""
    t, d = tl.arange(0, T), tl.arange(0, D)
    place = (start + t).to(tl.int64)[:, None] * row_stride + head * head_stride + d[None, :]
    return tl.load(tensor + place, mask=(t < n_tokens)[:, None], other=0.0)


@triton.jit
def _write(tensor, values, start, n_tokens, head, row_stride, T: tl.constexpr, D: tl.constexpr):
    """Write the tokens of a sequence to a contiguous tensor (N, H, D/H)."""
    t, d = tl.arange(0, T), tl.arange(0, D)
    place = (start + t).to(tl.int64)[:, None] * row_stride + head * D + d[None, :]
    tl.store(tensor + place, values.to(tensor.dtype.element_ty), mask=(t < n_tokens)[:, None])


@triton.jit
def _weights(q, k, n_queries, n_keys, scale, T: tl.constexpr, CAUSAL: tl.constexpr):
    """softmax(QKᵀ·scale + M), (T, T); a query that sees no key gets zeros."""
    t, s = tl.arange(0, T)[:, None], tl.arange(0, T)[None, :]
    visible = (t < n_queries) & (s < n_keys)
    if CAUSAL:
        visible = visible & (s <= t)
    scores = tl.where(visible, tl.dot(q, tl.trans(k)) * scale, float("-inf"))
    peak = tl.max(scores, 1)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp2((scores - peak[:, None]) * 1.4426950408889634)
    total = tl.sum(weights, 1)
    return weights / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def _forward(
    query,
    key,
    value,
    output,
    query_offsets,
    key_offsets,
    scale,
    n_heads,
    query_row,
    query_head,
    key_row,
    key_head,
    value_row,
    value_head,
    SHARE: tl.constexpr,
    LEAST: tl.constexpr,
    T: tl.constexpr,
    D: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One head of one sequence, if its longer side has more than LEAST and at most T tokens."""
    sequence, head = tl.program_id(0) // n_heads, tl.program_id(0) % n_heads
    query_start, key_start = tl.load(query_offsets + sequence), tl.load(key_offsets + sequence)
    n_queries = tl.load(query_offsets + sequence + 1) - query_start
    n_keys = tl.load(key_offsets + sequence + 1) - key_start
    longer = tl.maximum(n_queries, n_keys)
    if (longer <= LEAST) | (longer > T):
        return
    q = _read(query, query_start, n_queries, head, query_row, query_head, T, D)
    k = _read(key, key_start, n_keys, head // SHARE, key_row, key_head, T, D)
    v = _read(value, key_start, n_keys, head // SHARE, value_row, value_head, T, D)
    weights = _weights(q, k, n_queries, n_keys, scale, T, CAUSAL)
    heads = tl.dot(weights.to(v.dtype), v)
    _write(output, heads, query_start, n_queries, head, n_heads * D, T, D)


@triton.jit
def _backward(
    query,
    key,
    value,
    slope,
    query_slope,
    key_slope,
    value_slope,
    query_offsets,
    key_offsets,
    scale,
    n_groups,
    query_row,
    query_head,
    key_row,
    key_head,
    value_row,
    value_head,
    slope_row,
    slope_head,
    SHARE: tl.constexpr,
    LEAST: tl.constexpr,
    T: tl.constexpr,
    D: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One key/value head of one sequence, with all heads that share it."""
    sequence, group = tl.program_id(0) // n_groups, tl.program_id(0) % n_groups
    query_start, key_start = tl.load(query_offsets + sequence), tl.load(key_offsets + sequence)
    n_queries = tl.load(query_offsets + sequence + 1) - query_start
    n_keys = tl.load(key_offsets + sequence + 1) - key_start
    longer = tl.maximum(n_queries, n_keys)
    if (longer <= LEAST) | (longer > T):
        return
    k = _read(key, key_start, n_keys, group, key_row, key_head, T, D)
    v = _read(value, key_start, n_keys, group, value_row, value_head, T, D)
    k_slope = tl.zeros((T, D), tl.float32)
    v_slope = tl.zeros((T, D), tl.float32)
    for head in range(group * SHARE, (group + 1) * SHARE):
        q = _read(query, query_start, n_queries, head, query_row, query_head, T, D)
        heads_slope = _read(slope, query_start, n_queries, head, slope_row, slope_head, T, D)
        weights = _weights(q, k, n_queries, n_keys, scale, T, CAUSAL)
        v_slope += tl.dot(tl.trans(weights.to(k.dtype)), heads_slope)
        by_weight = tl.dot(heads_slope, tl.trans(v))
        mean = tl.sum(weights * by_weight, 1)
        by_score = (weights * (by_weight - mean[:, None]) * scale).to(k.dtype)
        k_slope += tl.dot(tl.trans(by_score), q)
        row = n_groups * SHARE * D
        _write(query_slope, tl.dot(by_score, k), query_start, n_queries, head, row, T, D)
    _write(key_slope, k_slope, key_start, n_keys, group, n_groups * D, T, D)
    _write(value_slope, v_slope, key_start, n_keys, group, n_groups * D, T, D)


def _launch(
    kernel: Any,
    tensors: list[Tensor],
    offsets: tuple[Tensor, Tensor],
    longest: int,
    scale: float,
    n_programs: int,
    strided: list[Tensor],
    **meta: Any,
) -> None:
    """Launch a kernel once for each range of lengths, up to the longest."""
    strides = [number for tensor in strided for number in tensor.stride()[:2]]
    n_sequences = len(offsets[0]) - 1
    with torch.cuda.device(tensors[0].device):
        for least, tile in pairwise((0, *TILES)):
            if least < longest:
                warps = 4 if tile <= 64 else 8
                kernel[(n_sequences * n_programs,)](
                    *tensors,
                    *offsets,
                    scale,
                    n_programs,
                    *strides,
                    **meta,
                    LEAST=least,
                    T=tile,
                    num_warps=warps,
                    num_stages=1,
                )


def _row_major(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@torch.library.custom_op("qkv::attend_short", mutates_args=())
def attend_short(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_offsets: Tensor,
    key_offsets: Tensor,
    longest: int,
    scale: float,
    causal: bool,
) -> Tensor:
    """Attend within packed sequences of at most `longest` tokens, (N, H, D/H)."""
    inputs = [_row_major(tensor) for tensor in (query, key, value)]
    n_heads, d_head = query.shape[1:]
    output = query.new_empty(query.shape)
    meta = {"SHARE": n_heads // key.shape[1], "D": d_head, "CAUSAL": causal}
    offsets = (query_offsets, key_offsets)
    _launch(_forward, [*inputs, output], offsets, longest, scale, n_heads, inputs, **meta)
    return output


@torch.library.custom_op("qkv::attend_short_backward", mutates_args=())
def attend_short_backward(
    slope: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_offsets: Tensor,
    key_offsets: Tensor,
    longest: int,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of Q, K and V, given that of the result."""
    inputs = [_row_major(tensor) for tensor in (query, key, value, slope)]
    n_heads, n_groups, d_head = query.shape[1], key.shape[1], query.shape[2]
    query_slope, key_slope, value_slope = (x.new_empty(x.shape) for x in (query, key, value))
    tensors = [*inputs, query_slope, key_slope, value_slope]
    meta = {"SHARE": n_heads // n_groups, "D": d_head, "CAUSAL": causal}
    offsets = (query_offsets, key_offsets)
    _launch(_backward, tensors, offsets, longest, scale, n_groups, inputs, **meta)
    return query_slope, key_slope, value_slope


@attend_short.register_fake
def _(query: Tensor, *_: Any) -> Tensor:
    return query.new_empty(query.shape)


@attend_short_backward.register_fake
def _(slope: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.settings = inputs[5:]


def _gradients(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
    slopes = torch.ops.qkv.attend_short_backward(slope, *ctx.saved_tensors, *ctx.settings)
    return (*slopes, None, None, None, None, None)


attend_short.register_autograd(_gradients, setup_context=_keep_inputs)
