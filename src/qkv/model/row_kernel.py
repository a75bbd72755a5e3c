"""Triton kernels for decoding: the attention of row_attention.py, and products of one row.

In attention, each program takes one key/value head of one row, with all queries that share it, and
a part of its keys; where there are several parts, a second kernel joins their results (as in flash
decoding).
Shapes: B rows, H heads, G key/value heads, T new tokens, S slots, D/H the size of a head.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Keys that are read at a time: where there are many rows, small programs share a multiprocessor.
NARROW, WIDE = 32, 64
MOST_PARTS = 16
PROGRAMS = 264  # that keep a large GPU busy: two for each of its multiprocessors
LOG2_E = 1.4426950408889634


@triton.jit
def _softmax_step(scores, value, peak, total, acc, PRECISION: tl.constexpr):
    """Add some keys to a softmax, given their scores to base 2, (M, BS)."""
    higher = tl.maximum(peak, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # where no key was visible so far
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(peak - base)
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None]
    acc += tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
    return higher, total, acc


@triton.jit
def _attend(
    query,
    key,
    value,
    new_key,
    new_value,
    lengths,
    visible,
    output,
    parts,
    peaks,
    totals,
    scale,
    window,
    n_groups,
    length_stride,
    query_row,
    query_head,
    query_token,
    key_row,
    key_group,
    key_slot,
    new_key_row,
    new_key_group,
    new_key_token,
    new_value_row,
    new_value_group,
    new_value_token,
    visible_row,
    visible_token,
    SHARE: tl.constexpr,
    T: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BS: tl.constexpr,
    BD: tl.constexpr,
    BT: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_NEW: tl.constexpr,
    HAS_VISIBLE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One row and group: SHARE heads times T tokens attend to a part of the keys."""
    row, group = tl.program_id(0) // n_groups, tl.program_id(0) % n_groups
    part = tl.program_id(1)
    row64 = row.to(tl.int64)
    length = tl.load(lengths + row * length_stride).to(tl.int32)
    m, d = tl.arange(0, BM), tl.arange(0, BD)
    head, token = group * SHARE + m // T, m % T
    is_query, is_size = m < SHARE * T, d < D
    inside = is_query[:, None] & is_size[None, :]
    at_query = row64 * query_row + head[:, None] * query_head + token[:, None] * query_token
    q = tl.load(query + at_query + d[None, :], mask=inside, other=0.0)

    peak = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BD), tl.float32)
    each = tl.cdiv(tl.cdiv(length, PARTS), BS) * BS
    first = part * each
    last = tl.minimum(first + each, length)
    if HAS_WINDOW:
        first = tl.maximum(first, (length + 1 - window) // BS * BS)
        first = tl.maximum(first, 0)
    for start in range(first, last, BS):
        s = start + tl.arange(0, BS)
        is_key = s < last
        here = is_key[:, None] & is_size[None, :]
        at_slot = row64 * key_row + group * key_group + s[:, None] * key_slot + d[None, :]
        k = tl.load(key + at_slot, mask=here, other=0.0)
        v = tl.load(value + at_slot, mask=here, other=0.0)
        seen = is_key[None, :]
        if HAS_WINDOW:
            seen = seen & (s > length - window)[None, :]
        if HAS_VISIBLE:
            at_flag = row64 * visible_row + token[:, None] * visible_token + s[None, :]
            seen = seen & (tl.load(visible + at_flag, mask=is_key[None, :], other=0) != 0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(seen, scores, float("-inf"))
        peak, total, acc = _softmax_step(scores, v, peak, total, acc, PRECISION)

    if HAS_NEW:  # noqa: SIM102  # this is known when the kernel is compiled, the next line is not
        if part == PARTS - 1:
            t = tl.arange(0, BT)
            is_new = (t < T)[:, None] & is_size[None, :]
            at_key = row64 * new_key_row + group * new_key_group + t[:, None] * new_key_token
            at_value = row64 * new_value_row + group * new_value_group
            at_value = at_value + t[:, None] * new_value_token
            k_new = tl.load(new_key + at_key + d[None, :], mask=is_new, other=0.0)
            v_new = tl.load(new_value + at_value + d[None, :], mask=is_new, other=0.0)
            k_own, v_own = k_new.to(key.dtype.element_ty), v_new.to(value.dtype.element_ty)
            slot = length + t
            at_new = row64 * key_row + group * key_group + slot[:, None] * key_slot + d[None, :]
            tl.store(key + at_new, k_own, mask=is_new)
            tl.store(value + at_new, v_own, mask=is_new)
            if HAS_VISIBLE:
                own = token[:, None] == t[None, :]
            else:
                own = (t[None, :] <= token[:, None]) & (t < T)[None, :]
            scores_own = tl.dot(q, tl.trans(k_own), input_precision=PRECISION) * scale
            scores_own = tl.where(own, scores_own, float("-inf"))
            peak, total, acc = _softmax_step(scores_own, v_own, peak, total, acc, PRECISION)

    n_heads = n_groups * SHARE
    place = (row * T + token) * n_heads + head  # (B, T, H)
    if PARTS == 1:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        at_output = place[:, None].to(tl.int64) * D + d[None, :]
        tl.store(output + at_output, acc.to(output.dtype.element_ty), mask=inside)
    else:
        place = place * PARTS + part
        tl.store(parts + place[:, None].to(tl.int64) * D + d[None, :], acc, mask=inside)
        tl.store(peaks + place, peak, mask=is_query)
        tl.store(totals + place, total, mask=is_query)


@triton.jit
def _join(parts, peaks, totals, output, D: tl.constexpr, BD: tl.constexpr, PARTS: tl.constexpr):
    """Join the parts of one query."""
    query = tl.program_id(0)
    p, d = tl.arange(0, PARTS), tl.arange(0, BD)
    peak = tl.load(peaks + query * PARTS + p)
    highest = tl.max(peak, 0)
    weight = tl.exp2(peak - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(tl.load(totals + query * PARTS + p) * weight, 0)
    at = (query * PARTS + p[:, None]).to(tl.int64) * D + d[None, :]
    some = tl.load(parts + at, mask=(d < D)[None, :], other=0.0)
    heads = tl.sum(some * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(output + query * D + d, heads.to(output.dtype.element_ty), mask=d < D)


def _launch(
    query: Tensor,
    new: tuple[Tensor, Tensor] | None,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    visible: Tensor | None,
    scale: float,
    window: int,
) -> Tensor:
    n_rows, n_heads, n_tokens, d_head = query.shape
    n_groups, n_slots = key.shape[1], key.shape[2]
    share, width = n_heads // n_groups, max(16, triton.next_power_of_2(d_head))
    assert key.stride() == value.stride() and key.stride(3) == 1
    query = query.to(key.dtype)
    output = query.new_empty((n_rows, n_tokens, n_heads, d_head))
    n_parts = max(1, min(PROGRAMS // (n_rows * n_groups), n_slots // WIDE, MOST_PARTS))
    n_parts = 1 << (n_parts.bit_length() - 1)
    n_queries_each = max(16, triton.next_power_of_2(share * n_tokens))
    n_warps = max(1, width // 64, n_queries_each // 16)
    block, n_warps = (WIDE, 4) if n_parts > 1 else (NARROW, n_warps)
    n_queries = n_rows * n_tokens * n_heads
    parts = peaks = totals = output
    if n_parts > 1:
        parts = query.new_empty((n_queries, n_parts, d_head), dtype=torch.float32)
        peaks, totals = query.new_empty((2, n_queries, n_parts), dtype=torch.float32)
    flags = lengths if visible is None else visible.view(torch.uint8)
    new_key, new_value = (key, value) if new is None else new
    meta: dict[str, Any] = {
        "SHARE": share,
        "T": n_tokens,
        "D": d_head,
        "BM": n_queries_each,
        "BS": block,
        "BD": width,
        "BT": 16,
        "PARTS": n_parts,
        "HAS_NEW": new is not None,
        "HAS_VISIBLE": visible is not None,
        "HAS_WINDOW": window > 0 and visible is None,
        "PRECISION": "ieee" if key.dtype == torch.float32 else "tf32",
        "num_warps": n_warps,
    }
    with torch.cuda.device(query.device):
        _attend[(n_rows * n_groups, n_parts)](
            query,
            key,
            value,
            new_key,
            new_value,
            lengths,
            flags,
            output,
            parts,
            peaks,
            totals,
            scale * LOG2_E,
            window,
            n_groups,
            lengths.stride(0),
            *query.stride()[:3],
            *key.stride()[:3],
            *new_key.stride()[:3],
            *new_value.stride()[:3],
            *((0, 0) if visible is None else flags.stride()[:2]),
            **meta,
        )
        if n_parts > 1:
            sizes = {"D": d_head, "BD": meta["BD"], "PARTS": n_parts}
            _join[(n_queries,)](parts, peaks, totals, output, **sizes, num_warps=1)
    return output


@triton.jit
def _multiply(
    row,
    matrix,
    scale,
    output,
    n_outputs,
    K: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    IS_EVEN: tl.constexpr,
    HAS_SCALE: tl.constexpr,
):
    """Multiply a row (K) by some rows of a matrix (N, K)."""
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    is_output = n < n_outputs
    at = matrix + n.to(tl.int64)[:, None] * K + k[None, :]
    acc = tl.zeros((BN, BK), tl.float32)
    for start in tl.static_range(0, K, BK):
        inside = (start + k) < K
        if IS_EVEN:
            weights = tl.load(at + start)
            x = tl.load(row + start + k)
        else:
            weights = tl.load(at + start, mask=is_output[:, None] & inside[None, :], other=0)
            x = tl.load(row + start + k, mask=inside, other=0.0)
        acc += weights.to(tl.float32) * x.to(tl.float32)[None, :]
    product = tl.sum(acc, 1)
    if HAS_SCALE:
        product *= tl.load(scale + n, mask=is_output, other=0.0)
    tl.store(output + n, product.to(output.dtype.element_ty), mask=is_output)


@torch.library.custom_op("qkv::multiply_row", mutates_args=())
def multiply_row(row: Tensor, matrix: Tensor, scale: Tensor | None) -> Tensor:
    """Multiply a row (1, K) by a matrix (N, K) of floats or integers, and each output by its scale.

    Such a product is as fast as the matrix is read, and cuBLAS reads it no faster than this.
    """
    n_outputs, size = matrix.shape
    output = row.new_empty((1, n_outputs))
    # Chosen by measuring: so much of the matrix is read at once by a program.
    n_each, width, n_warps = (4, 2048, 4) if size <= 2048 else (2, 4096, 8)
    width = min(width, triton.next_power_of_2(size))
    n_programs = triton.cdiv(n_outputs, n_each)
    meta: dict[str, Any] = {
        "K": size,
        "BN": n_each,
        "BK": width,
        "IS_EVEN": size % width == 0 and n_outputs % n_each == 0,
        "HAS_SCALE": scale is not None,
        "num_warps": n_warps,
    }
    scales = row if scale is None else scale
    with torch.cuda.device(row.device):
        _multiply[(n_programs,)](row.contiguous(), matrix, scales, output, n_outputs, **meta)
    return output


@multiply_row.register_fake
def _(row: Tensor, matrix: Tensor, scale: Tensor | None) -> Tensor:
    return row.new_empty((1, matrix.shape[0]))


@torch.library.custom_op("qkv::attend_rows", mutates_args=())
def attend_rows(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """Attend to the first keys of each row, (B, T, H, D/H)."""
    if key.stride() != value.stride() or key.stride(3) != 1:  # of an encoder that turns its keys
        key, value = key.contiguous(), value.contiguous()
    return _launch(query, None, key, value, lengths, None, scale, 0)


@torch.library.custom_op("qkv::extend_rows", mutates_args=("key", "value"))
def extend_rows(
    query_key: Tensor,
    new_value: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    visible: Tensor | None,
    scale: float,
    window: int,
) -> Tensor:
    """Write new keys and values after the filled slots, and attend to them all, (B, T, H, D/H)."""
    n_groups = key.shape[1]
    query, new_key = query_key[:, :-n_groups], query_key[:, -n_groups:]
    return _launch(query, (new_key, new_value), key, value, lengths, visible, scale, window)


@attend_rows.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, scale: float) -> Tensor:
    n_rows, n_heads, n_tokens, d_head = query.shape
    return query.new_empty((n_rows, n_tokens, n_heads, d_head), dtype=key.dtype)


@extend_rows.register_fake
def _(query_key: Tensor, new_value: Tensor, key: Tensor, *_: Any) -> Tensor:
    n_rows, n_heads, n_tokens, d_head = query_key.shape
    shape = (n_rows, n_tokens, n_heads - key.shape[1], d_head)
    return query_key.new_empty(shape, dtype=key.dtype)
