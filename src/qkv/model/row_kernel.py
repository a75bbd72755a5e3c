"""Triton kernels for decoding: the attention of row_attention.py, and products of one row.

In attention, each program takes one key/value head of one row, with all queries that share it, and
a part of its keys (as in flash decoding); the last one to end joins the parts. Queries and new keys
are turned by their positions as they are read.
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
MANY_OUTPUTS = 2**15  # of a product, such as a vocabulary's
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
def _read_turned(
    vectors,
    at_vector,
    cosine,
    sine,
    at_angle,
    is_vector,
    D: tl.constexpr,
    BD: tl.constexpr,
    TURNED: tl.constexpr,
):
    """Read vectors (M, BD), and turn their first TURNED dimensions by the angles of each."""
    d = tl.arange(0, BD)[None, :]
    found = tl.load(vectors + at_vector + d, mask=is_vector & (d < D), other=0.0)
    if TURNED > 0:
        turned = is_vector & (d < TURNED)
        swapped = (d + TURNED // 2) % TURNED  # (b, a): the halves are swapped
        other = tl.load(vectors + at_vector + swapped, mask=turned, other=0.0).to(tl.float32)
        cos = tl.load(cosine + at_angle + d, mask=turned, other=1.0).to(tl.float32)
        sin = tl.load(sine + at_angle + d, mask=turned, other=0.0).to(tl.float32)
        found = (found.to(tl.float32) * cos + other * sin).to(found.dtype)
    return found


@triton.jit
def _attend(
    query,
    key,
    value,
    new_key,
    new_value,
    cosine,
    sine,
    lengths,
    visible,
    output,
    parts,
    peaks,
    totals,
    ended,
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
    angle_row,
    angle_token,
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
    TURNED: tl.constexpr,
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
    at_angle = row * angle_row + token[:, None] * angle_token
    q = _read_turned(query, at_query, cosine, sine, at_angle, is_query[:, None], D, BD, TURNED)
    q = q.to(key.dtype.element_ty)

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
            at_turn = row * angle_row + t[:, None] * angle_token
            is_token = (t < T)[:, None]
            k_new = _read_turned(new_key, at_key, cosine, sine, at_turn, is_token, D, BD, TURNED)
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
        own = place * PARTS + part
        tl.store(parts + own[:, None].to(tl.int64) * D + d[None, :], acc, mask=inside)
        tl.store(peaks + own, peak, mask=is_query)
        tl.store(totals + own, total, mask=is_query)
        tl.debug_barrier()  # all threads have stored what the last program is to see
        if tl.atomic_add(ended + tl.program_id(0), 1, sem="acq_rel") == PARTS - 1:
            _join(parts, peaks, totals, output, place, is_query, D, BM, BD, PARTS)
            tl.store(ended + tl.program_id(0), 0)


@triton.jit
def _join(
    parts,
    peaks,
    totals,
    output,
    place,
    is_query,
    D: tl.constexpr,
    BM: tl.constexpr,
    BD: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Join the parts of some queries, past the cache of this multiprocessor alone."""
    d = tl.arange(0, BD)
    inside = is_query[:, None] & (d < D)[None, :]
    highest = tl.full((BM,), float("-inf"), tl.float32)
    for part in tl.static_range(PARTS):
        at = peaks + place * PARTS + part
        peak = tl.load(at, mask=is_query, other=float("-inf"), cache_modifier=".cg")
        highest = tl.maximum(highest, peak)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BD), tl.float32)
    for part in tl.static_range(PARTS):
        own = place * PARTS + part
        peak = tl.load(peaks + own, mask=is_query, other=float("-inf"), cache_modifier=".cg")
        weight = tl.exp2(peak - highest)
        total += weight * tl.load(totals + own, mask=is_query, other=0.0, cache_modifier=".cg")
        at = parts + own[:, None].to(tl.int64) * D + d[None, :]
        acc += weight[:, None] * tl.load(at, mask=inside, other=0.0, cache_modifier=".cg")
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    at = output + place[:, None].to(tl.int64) * D + d[None, :]
    tl.store(at, acc.to(output.dtype.element_ty), mask=inside)


def _launch(
    query: Tensor,
    new: tuple[Tensor, Tensor] | None,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    visible: Tensor | None,
    scale: float,
    window: int = 0,
    angles: tuple[Tensor, Tensor] | None = None,
    ended: Tensor | None = None,
) -> Tensor:
    n_rows, n_heads, n_tokens, d_head = query.shape
    n_groups, n_slots = key.shape[1], key.shape[2]
    share, width = n_heads // n_groups, max(16, triton.next_power_of_2(d_head))
    new_key, new_value = (key, value) if new is None else new
    assert key.stride() == value.stride()
    assert all(x.stride(3) == 1 for x in (query, key, new_key, new_value))
    output = key.new_empty((n_rows, n_tokens, n_heads, d_head))
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
        ended = lengths.new_zeros(n_rows * n_groups, dtype=torch.int32) if ended is None else ended
    flags = lengths if visible is None else visible.view(torch.uint8)
    cosine, sine = (key, key) if angles is None else (x.expand(n_rows, 1, -1, -1) for x in angles)
    meta: dict[str, Any] = {
        "SHARE": share,
        "T": n_tokens,
        "D": d_head,
        "BM": n_queries_each,
        "BS": block,
        "BD": width,
        "BT": 16,
        "PARTS": n_parts,
        "TURNED": 0 if angles is None else cosine.shape[3],
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
            cosine,
            sine,
            lengths,
            flags,
            output,
            parts,
            peaks,
            totals,
            lengths if ended is None else ended,
            scale * LOG2_E,
            window,
            n_groups,
            lengths.stride(0),
            *query.stride()[:3],
            *key.stride()[:3],
            *new_key.stride()[:3],
            *new_value.stride()[:3],
            *cosine.stride()[:3:2],
            *((0, 0) if visible is None else flags.stride()[:2]),
            **meta,
        )
    return output


# Four integers of 8 bits to floats: each is laid into the lowest byte of 2²³, and 2²³ + 128 taken
# away again. The GPU's own conversion is several times as slow, and slower than memory.
INT8_TO_FLOAT = tl.constexpr("""{
.reg .b32 bytes;
xor.b32 bytes, $4, 0x80808080;
prmt.b32 $0, bytes, 0x4B000000, 0x7440;
prmt.b32 $1, bytes, 0x4B000000, 0x7441;
prmt.b32 $2, bytes, 0x4B000000, 0x7442;
prmt.b32 $3, bytes, 0x4B000000, 0x7443;
sub.rn.f32 $0, $0, 0f4B000080;
sub.rn.f32 $1, $1, 0f4B000080;
sub.rn.f32 $2, $2, 0f4B000080;
sub.rn.f32 $3, $3, 0f4B000080;
}""")


@triton.jit
def _read(at, inside, IS_EVEN: tl.constexpr):
    """Read numbers as floats; where a tile may reach past the end, zeros there."""
    found = tl.load(at) if IS_EVEN else tl.load(at, mask=inside, other=0)
    if found.dtype == tl.int8:
        registers: tl.constexpr = "=f,=f,=f,=f,r"
        floats = tl.inline_asm_elementwise(
            INT8_TO_FLOAT, registers, [found], dtype=tl.float32, is_pure=True, pack=4
        )
    else:
        floats = found.to(tl.float32)
    return floats


@triton.jit
def _multiply(
    row,
    matrix,
    scale,
    gain,
    added,
    output,
    n_outputs,
    epsilon,
    K: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    IS_EVEN: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    GATED: tl.constexpr,
):
    """Multiply a row (K) by some rows of a matrix (N, K), or of both its halves if gated."""
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    is_output = n < n_outputs
    at = matrix + n.to(tl.int64)[:, None] * K + k[None, :]
    at_inner = matrix + (n + n_outputs).to(tl.int64)[:, None] * K + k[None, :]
    acc = tl.zeros((BN, BK), tl.float32)
    inner_acc = tl.zeros((BN, BK), tl.float32)
    squares = tl.zeros((BK,), tl.float32)
    for start in tl.static_range(0, K, BK):
        inside = (start + k) < K
        here = is_output[:, None] & inside[None, :]
        weights = _read(at + start, here, IS_EVEN)
        if GATED:
            inner_weights = _read(at_inner + start, here, IS_EVEN)
        x = _read(row + start + k, inside, IS_EVEN)
        if HAS_NORM:
            squares += x * x
            x *= _read(gain + start + k, inside, IS_EVEN)
        acc += weights * x[None, :]
        if GATED:
            inner_acc += inner_weights * x[None, :]
    factor = tl.full((BN,), 1.0, tl.float32)
    if HAS_NORM:
        factor *= tl.rsqrt(tl.sum(squares, 0) / K + epsilon)
    product = tl.sum(acc, 1) * factor
    if HAS_SCALE:
        product *= tl.load(scale + n, mask=is_output, other=0.0)
    if GATED:
        inner = tl.sum(inner_acc, 1) * factor
        if HAS_SCALE:
            inner *= tl.load(scale + n_outputs + n, mask=is_output, other=0.0)
        product *= tl.sigmoid(product) * inner
    if HAS_ADDED:
        product += tl.load(added + n, mask=is_output, other=0.0).to(tl.float32)
    tl.store(output + n, product.to(output.dtype.element_ty), mask=is_output)


def _tile(dtype: torch.dtype, n_outputs: int, size: int, gated: bool) -> tuple[int, int, int]:
    """Rows and columns that a program reads at once, and its warps, chosen by measuring."""
    if dtype != torch.int8:
        n_each, width, n_warps = (4, 2048, 4) if size <= 2048 else (2, 4096, 8)
        return n_each // 2 if gated else n_each, width, n_warps
    if gated:
        return 4, 512, 2
    if n_outputs >= MANY_OUTPUTS:
        return 16, 1024, 4
    return (2, 2048, 2) if size <= 2048 else (4, 2048, 4)


@torch.library.custom_op("qkv::multiply_row", mutates_args=())
def multiply_row(
    row: Tensor,
    matrix: Tensor,
    scale: Tensor | None,
    gain: Tensor | None,
    epsilon: float,
    added: Tensor | None,
    gated: bool,
) -> Tensor:
    """Multiply a row (1, K) by a matrix (N, K) of floats or integers, and each output by its scale.

    With a gain, RMSNorm is applied to the row first. A gated product returns silu(first half of the
    outputs) times the second half. In the end, `added` is added. All of this is done in float32.

    Such a product is as fast as the matrix is read, and cuBLAS reads it no faster than this; what
    stands around it would be kernels of their own, each as long as some products.
    """
    size = matrix.shape[1]
    n_outputs = matrix.shape[0] // 2 if gated else matrix.shape[0]
    output = row.new_empty((1, n_outputs))
    n_each, width, n_warps = _tile(matrix.dtype, n_outputs, size, gated)
    width = min(width, triton.next_power_of_2(size))
    meta: dict[str, Any] = {
        "K": size,
        "BN": n_each,
        "BK": width,
        "IS_EVEN": size % width == 0 and n_outputs % n_each == 0,
        "HAS_SCALE": scale is not None,
        "HAS_NORM": gain is not None,
        "HAS_ADDED": added is not None,
        "GATED": gated,
        "num_warps": n_warps,
    }
    vectors = [row if vector is None else vector for vector in (scale, gain, added)]
    with torch.cuda.device(row.device):
        _multiply[(triton.cdiv(n_outputs, n_each),)](
            row.contiguous(), matrix, *vectors, output, n_outputs, epsilon, **meta
        )
    return output


@multiply_row.register_fake
def _(row: Tensor, matrix: Tensor, *others: Any) -> Tensor:
    gated = others[-1]
    return row.new_empty((1, matrix.shape[0] // 2 if gated else matrix.shape[0]))


@torch.library.custom_op("qkv::attend_rows", mutates_args=())
def attend_rows(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """Attend to the first keys of each row, (B, T, H, D/H)."""
    if key.stride() != value.stride() or key.stride(3) != 1:  # of an encoder that turns its keys
        key, value = key.contiguous(), value.contiguous()
    return _launch(query, None, key, value, lengths, None, scale)


# Inductor would copy angles for each layer, to be sure of the strides that eager code has.
@torch.library.custom_op(
    "qkv::extend_rows", mutates_args=("key", "value"), tags=(torch.Tag.flexible_layout,)
)
def extend_rows(
    query_key: Tensor,
    new_value: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    visible: Tensor | None,
    scale: float,
    window: int,
    cosine: Tensor | None,
    sine: Tensor | None,
    ended: Tensor | None,
) -> Tensor:
    """Write new keys and values after the filled slots, and attend to them all, (B, T, H, D/H).

    `ended` are zeros, (B·G,) int32, before and after it.
    """
    n_groups = key.shape[1]
    query, new_key = query_key[:, :-n_groups], query_key[:, -n_groups:]
    new, angles = (new_key, new_value), None
    if cosine is not None and sine is not None:
        angles = cosine, sine
    return _launch(query, new, key, value, lengths, visible, scale, window, angles, ended)


@attend_rows.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, scale: float) -> Tensor:
    n_rows, n_heads, n_tokens, d_head = query.shape
    return query.new_empty((n_rows, n_tokens, n_heads, d_head), dtype=key.dtype)


@extend_rows.register_fake
def _(query_key: Tensor, new_value: Tensor, key: Tensor, *_: Any) -> Tensor:
    n_rows, n_heads, n_tokens, d_head = query_key.shape
    shape = (n_rows, n_tokens, n_heads - key.shape[1], d_head)
    return query_key.new_empty(shape, dtype=key.dtype)
