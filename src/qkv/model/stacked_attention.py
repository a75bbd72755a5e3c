"""Attention while training in bfloat16 on a CPU, by products of stacks of matrices.

Torch's kernel for a CPU computes in float32, and computes the weights again on the way back. Where
they are few, keeping them and multiplying in bfloat16 is faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.model.dropout import dropout as drop
from qkv.model.mask import Mask

MOST_WEIGHTS = 2**16  # of one head, up to which all are kept for the backward pass
HIDDEN = -1e30  # a score as good as -∞ in bfloat16, with which a blind query's gradient is no NaN


def serves(query: Tensor, key: Tensor) -> bool:
    """Whether there are few weights to keep, and a gradient that needs them."""
    few = query.shape[-2] * key.shape[-2] <= MOST_WEIGHTS
    return few and torch.is_grad_enabled() and query.shape[1] == key.shape[1]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    scale: float,
    bias: Tensor | None,
    dropout: float,
) -> Tensor:
    """softmax(QKᵀ/√d_k + M)·V, (B, H, T, D/H)."""
    shape = *query.shape[:3], key.shape[-2]  # (B, H, T, S)
    added = query.new_zeros(()) if bias is None else bias.to(query.dtype)
    blind = None
    if not mask.hides_nothing:
        visible = mask.boolean(shape[2], shape[3], query.device)
        blind = None if mask.only_causal else ~visible.any(dim=-1, keepdim=True)
        added = added.masked_fill(~visible, HIDDEN)
    stacks = [x.flatten(0, 1) for x in (query, key, value)]  # (B·H, …, D/H)
    added = added.expand(shape).flatten(0, 1)
    products = torch.baddbmm(added, stacks[0], stacks[1].mT, alpha=scale)
    heads = (drop(products.softmax(-1), dropout) @ stacks[2]).unflatten(0, shape[:2])
    return heads if blind is None else heads.masked_fill(blind, 0.0)
