"""Muon: momentum whose every matrix is made orthogonal before it moves the weights (Jordan 2024).

An update of equal singular values uses all directions of a matrix alike, where Adam's follow a few.
It serves the matrices inside the blocks; embeddings, norms and biases stay with AdamW. Updates are
as large as AdamW's usually are (Liu et al. 2025), so that one learning rate serves both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from qkv.device import has_bfloat16
from qkv.model import Attention, FeedForward

MOMENTUM = 0.95
STEPS = 5
A, B, C = 3.4445, -4.7750, 2.0315  # of a polynomial that drives singular values from 0…1 to near 1
SIZE = 0.2  # root mean square of an update, about that of AdamW's

Parts = tuple[int, ...]


def block_matrices(model: nn.Module) -> Iterator[tuple[Tensor, Parts]]:
    """The weights that Muon serves, each with the rows of the matrices that were fused in it."""
    for module in model.modules():
        if isinstance(module, Attention):
            query, key = module.n_heads * module.d_head, module.n_kv_heads * module.d_head
            fused = {"query_key_value": (query, key, key), "key_value": (key, key)}
            for name, linear in module.named_children():
                assert isinstance(linear, nn.Linear)
                yield linear.weight, fused.get(name, (linear.out_features,))
        if isinstance(module, FeedForward):
            inner, outer = module.inner, module.outer
            n_matrices = 2 if module.gated else 1
            yield inner.weight, (inner.out_features // n_matrices,) * n_matrices
            yield outer.weight, (outer.out_features,)


class Muon(torch.optim.AdamW):
    """AdamW, but for groups that have "parts": those matrices are moved orthogonally."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Move all weights once."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if "parts" not in group]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if "parts" in group:
                self._step_matrices(group)

    def _step_matrices(self, group: dict[str, Any]) -> None:
        moved = [
            (parameter, parts)
            for parameter, parts in zip(group["params"], group["parts"], strict=True)
            if parameter.grad is not None
        ]
        directions = [
            piece
            for parameter, parts in moved
            for piece in self._direction(parameter).split(list(parts))
        ]
        updates = iter(orthogonal(directions))
        for parameter, parts in moved:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            update = torch.cat([next(updates) for _ in parts])
            parameter.add_(update.to(parameter.dtype), alpha=-group["lr"])

    def _direction(self, parameter: Tensor) -> Tensor:
        """The gradient, with a look ahead along the momentum of those before it (Nesterov)."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"]
        momentum.lerp_(parameter.grad, 1 - MOMENTUM)
        return parameter.grad.lerp(momentum, MOMENTUM)


def orthogonal(matrices: list[Tensor]) -> list[Tensor]:
    """Each matrix with its singular values near 1, times its size; those of one shape together."""
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, matrix in enumerate(matrices):
        alike[tuple(matrix.shape)].append(place)
    found = list(matrices)
    for (rows, columns), places in alike.items():
        stacked = newton_schulz(torch.stack([matrices[place] for place in places]))
        scale = SIZE * max(rows, columns) ** 0.5
        for place, update in zip(places, stacked, strict=True):
            found[place] = update * scale
    return found


def newton_schulz(stacked: Tensor) -> Tensor:
    """Iterate X ← aX + b(XXᵀ)X + c(XXᵀ)²X on a stack of matrices (N, R, C)."""
    tall = stacked.shape[-2] > stacked.shape[-1]
    x = stacked.mT if tall else stacked  # the smaller product
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    x = x.to(torch.bfloat16 if has_bfloat16(x.device) else torch.float32)
    for _ in range(STEPS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=B, alpha=C), x, beta=A)
    return x.mT if tall else x
