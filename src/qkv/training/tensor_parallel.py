"""Tensor parallelism: the heads and the inner units of each block, shared out to neighbours.

Each of N workers has 1/N of the heads of every attention and of the units of every feed-forward
layer, computes with them, and the results are summed (Shoeybi et al. 2019). All else is on each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.errors import UserError
from qkv.model import Attention, FeedForward, Model

COLUMNS, ROWS = 0, 1  # dimension of nn.Linear's weight (out, in) that is shared out


def check_tensor_parallel(model: Model, size: int) -> None:
    """Refuse a model whose heads or units cannot be shared out to `size` workers."""
    if size == 1:
        return
    config = model.config
    problem = _problem(config, size)
    if problem:
        raise UserError(f"train.tensor_parallel ({size}): {problem}.")


def _problem(config: ModelConfig, size: int) -> str:
    for name, count in (
        ("n_heads", config.n_heads),
        ("n_kv_heads", config.kv_heads),
        ("d_ff", config.d_ff),
    ):
        if count % size:
            return f"the model's {name} ({count}) must be a multiple of it; choose another number"
    if config.biases_scores:
        return f"positions = '{config.positions}' belong to heads; use train.shard = 'full' instead"
    if config.has_qkv_bias and not config.key_bias:
        return "key_bias = false belongs to heads; use train.shard = 'full' instead"
    if config.query_key_norm:
        return "query_key_norm belongs to heads; use train.shard = 'full' instead"
    return ""


def _fused(model: nn.Module) -> Iterator[tuple[str, list[int]]]:
    """Yield the names of matrices that hold several, one below the other, and the rows of each."""
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            kv = module.n_kv_heads * module.d_head
            if hasattr(module, "key_value"):
                yield f"{name}.key_value", [kv, kv]
            else:
                yield f"{name}.query_key_value", [module.n_heads * module.d_head, kv, kv]
        elif isinstance(module, FeedForward) and module.gated:
            yield f"{name}.inner", [module.inner.out_features // 2] * 2


def row_orders(model: nn.Module, size: int) -> dict[str, Tensor]:
    """Return, by weight, the order of rows in which each worker's part is in one piece.

    Of queries, keys and values one below the other, a worker needs a part of each.
    """
    if size == 1:
        return {}
    named = dict(model.named_parameters())
    return {
        f"{name}.{kind}": _order(rows, size)
        for name, rows in _fused(model)
        for kind in ("weight", "bias")
        if f"{name}.{kind}" in named
    }


def _order(rows: Sequence[int], size: int) -> Tensor:
    pieces = [part.chunk(size) for part in torch.arange(sum(rows)).split(list(rows))]
    return torch.cat([piece[worker] for worker in range(size) for piece in pieces])


def split_matrices(model: nn.Module, mesh: Any) -> dict[str, int]:
    """Share out the heads and units of all blocks; return the dimension of each split weight."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    size = mesh.size()
    for name, order in row_orders(model, size).items():
        weight = model.get_parameter(name)
        weight.data = weight.data[order.to(weight.device)]
    dims: dict[str, int] = {}
    plan: dict[str, Any] = {}
    for name, module in model.named_modules():
        columns, rows = _linears(module)
        for child in columns:
            plan[f"{name}.{child}"] = ColwiseParallel()
            dims |= {f"{name}.{child}.weight": COLUMNS, f"{name}.{child}.bias": COLUMNS}
        for child in rows:
            plan[f"{name}.{child}"] = RowwiseParallel()
            dims[f"{name}.{child}.weight"] = ROWS
        if isinstance(module, Attention):
            module.n_heads //= size
            module.n_kv_heads //= size
    parallelize_module(model, mesh, plan)
    return dims


def _linears(module: nn.Module) -> tuple[list[str], list[str]]:
    """Return the names of layers whose outputs, and whose inputs, are shared out."""
    if isinstance(module, Attention):
        return [
            name for name in ("query", "key_value", "query_key_value") if hasattr(module, name)
        ], ["output"]
    return (["inner"], ["outer"]) if isinstance(module, FeedForward) else ([], [])
