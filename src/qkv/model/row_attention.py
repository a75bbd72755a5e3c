"""Attention of the newest tokens of each row to its own keys, by one kernel on a GPU.

The fused kernels of torch read all slots of a KV cache, filled or not, and a mask beside them. This
one (row_kernel.py) reads the slots that a row has filled, whose number it finds on the GPU: so the
cost of a recorded step follows what is filled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.model.positions import Angles

MOST_QUERIES = 16  # of a row, as many as the kernel's smallest tile has
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


_is_available: list[bool] = []  # once it was asked


def is_available() -> bool:
    """Whether this machine can run the kernel, which is imported at the first call."""
    if not _is_available:
        _is_available.append(torch.cuda.is_available() and _can_import())
    return _is_available[0]


def _can_import() -> bool:
    try:
        import qkv.model.row_kernel  # noqa: F401  # registers torch.ops.qkv
    except ImportError:  # torch without Triton
        return False
    return True


def serves(query: Tensor) -> bool:
    """Whether the kernel takes these queries, (B, H, T, D/H); it has no gradients."""
    is_small = query.shape[2] <= MOST_QUERIES and query.shape[3] <= 256
    on_gpu = query.is_cuda and query.dtype in DTYPES
    return on_gpu and is_small and not torch.is_grad_enabled() and is_available()


def attend(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """Attend to the first keys of each row, as many as `lengths` (B,) says, (B, H, T, D/H)."""
    heads: Tensor = torch.ops.qkv.attend_rows(query, key, value, lengths, scale)
    return heads.transpose(1, 2)


def extend_and_attend(
    query_key: Tensor,
    value: Tensor,
    store: tuple[Tensor, Tensor],
    lengths: Tensor,
    visible: Tensor | None,
    scale: float,
    window: int,
    angles: Angles | None,
    ended: Tensor | None,
) -> Tensor:
    """Write new keys and values after the filled slots, and attend to all of them.

    Queries and new keys come in one tensor, (B, H + G, T, D/H), to be turned by the angles.
    Without `visible`, a token sees all slots up to its own. With it, (B, T, S) bool, the tokens are
    beams: each sees the slots that it tells, and its own.
    """
    turns = (None, None) if angles is None else angles
    heads: Tensor = torch.ops.qkv.extend_rows(
        query_key, value, *store, lengths, visible, scale, window, *turns, ended
    )
    return heads.transpose(1, 2)
