"""Attention within packed sequences on a GPU, by kernels that take their offsets.

Torch's kernel takes sequences of any length. Ours (short_kernel.py) takes short ones, such as
sentences, which leave most of that one's tiles empty.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.model.mask import Mask

HALF = (torch.bfloat16, torch.float16)
LONGEST = 128  # as in short_kernel.py
SHORT_HEADS = (32, 64)  # larger ones leave no room for the scores


def serves(query: Tensor, mask: Mask) -> bool:
    """Whether a kernel takes these queries, (1, H, N, D/H)."""
    is_half = query.is_cuda and query.dtype in HALF
    if not is_half or not mask.packed:
        return False
    return _is_short(query, mask) or _long_kernel() is not None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float) -> Tensor:
    """Attend within packed sequences, (1, H, N, D/H)."""
    assert mask.query_offsets is not None and mask.key_offsets is not None
    offsets, longest = (
        (mask.query_offsets, mask.key_offsets),
        (mask.longest_query, mask.longest_key),
    )
    is_short = _is_short(query, mask)
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))  # (N, H, D/H)
    if is_short:
        heads: Tensor = torch.ops.qkv.attend_short(
            query, key, value, *offsets, max(longest), scale, mask.causal
        )
    else:
        kernel = _long_kernel()
        assert kernel is not None
        reach = mask.window - 1 if mask.window else -1  # to either side; -1: to the end
        window = (reach, 0 if mask.causal else reach)
        heads = kernel(query, key, value, *offsets, *longest, scale=scale, window_size=window)
    return heads.transpose(0, 1)[None]


def _is_short(query: Tensor, mask: Mask) -> bool:
    fits = max(mask.longest_query, mask.longest_key) <= LONGEST and not mask.window
    return fits and query.shape[-1] in SHORT_HEADS and _has_short_kernel()


def _has_short_kernel() -> bool:
    """Import our kernel at its first use, which registers it, where torch has Triton."""
    try:
        import qkv.model.short_kernel  # noqa: F401
    except ImportError:
        return False
    return True


def _long_kernel() -> Callable[..., Tensor] | None:
    """Import torch's kernel at its first use: that takes a second."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # some builds of torch lack a name that it needs
        return None
    return varlen_attn  # type: ignore[return-value]  # a tuple only if asked for more
