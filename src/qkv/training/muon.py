"""Muon: the matrices inside the blocks move by orthogonal steps (Jordan et al. 2024).

A gradient's matrix is ruled by a few directions. Muon gives all of them the same weight: it takes
the momentum U·S·Vᵀ and moves by U·Vᵀ, which Newton-Schulz iterations find by products alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qkv.model import Attention, FeedForward

# p(s) = 3.4445·s - 4.7750·s³ + 2.0315·s⁵, five times over, takes all singular values from 0.002 to
# 1 to between 0.68 and 1.21. It is steep at 0 rather than exact at 1, so that five are enough.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
SMALLEST_NORM = 1e-7  # so that a matrix of zeros stays one
MOMENTUM = 0.95


def orthogonal(stack: Tensor, half: bool = False) -> Tensor:
    """U·Vᵀ, nearly, of each matrix U·S·Vᵀ in a stack (N, R, C); by bfloat16 products if `half`."""
    norm = torch.linalg.vector_norm(stack, dim=(-2, -1), keepdim=True)
    x = stack / norm.clamp(min=SMALLEST_NORM)  # no singular value is over 1
    x = x.bfloat16() if half else x
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x  # the smaller side first makes the smaller products
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(stack.dtype)


def hidden_weights(model: nn.Module) -> dict[Tensor, int]:
    """The weights of attention and feed-forward layers, each with the rows of one matrix in it.

    Some hold several matrices, one below the other: each head's query, key or value, or a gate and
    what it lets through. One is not to be made orthogonal to another.
    """
    found: dict[Tensor, int] = {}
    for module in model.modules():
        if isinstance(module, Attention):
            linears = [m for m in module.children() if isinstance(m, nn.Linear)]
            found |= {linear.weight: module.d_head for linear in linears}
            found[module.output.weight] = module.output.out_features  # it mixes the heads
        if isinstance(module, FeedForward):
            found[module.inner.weight] = module.inner.out_features // (1 + module.gated)
            found[module.outer.weight] = module.outer.out_features
    return found


class Muon(torch.optim.Optimizer):
    """Muon for the hidden weights and AdamW for the groups of `others`, with one state.

    `hidden` tells how many rows each matrix of a weight has. Where a matrix is tall, its step is
    √(R/C) times as long: then a step changes each output by as much whatever the sizes, and one
    learning rate serves models of all widths.
    """

    def __init__(
        self,
        hidden: Mapping[Tensor, int],
        others: Iterable[dict[str, Any]],
        *,
        weight_decay: float,
        share: float = 1.0,
        half: bool = False,
        **adamw: Any,
    ) -> None:
        group = {"params": list(hidden), "rows": list(hidden.values()), "share": share}
        super().__init__([group], {"lr": 0.0, "weight_decay": weight_decay, "half": half})
        self.adamw = torch.optim.AdamW(others, lr=0.0, **adamw)
        self.param_groups += self.adamw.param_groups

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        hidden, *others = self.param_groups
        self.adamw.param_groups, self.adamw.state = others, self.state
        self.adamw.step()
        alike: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for weight, rows in zip(hidden["params"], hidden["rows"], strict=True):
            if weight.grad is not None:
                alike[rows, weight.shape[1]].append(weight)
        for shape, weights in alike.items():
            self._move(weights, shape, hidden)

    def _move(self, weights: list[Tensor], shape: tuple[int, int], group: dict[str, Any]) -> None:
        """One step of all the weights whose matrices have this shape, iterated as one stack."""
        rows, columns = shape
        stack = torch.cat([d.view(-1, rows, columns) for d in self._directions(weights)])
        moves = orthogonal(stack, group["half"]).flatten(0, 1).split([len(w) for w in weights])
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        length = group["lr"] * max(1.0, rows / columns) ** 0.5
        torch._foreach_add_(weights, moves, alpha=-length)

    def _directions(self, weights: list[Tensor]) -> list[Tensor]:
        """The running mean of each weight's gradients, one gradient ahead (Nesterov)."""
        for weight in weights:
            if "momentum" not in self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        means = [self.state[weight]["momentum"] for weight in weights]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        torch._foreach_lerp_(means, gradients, 1 - MOMENTUM)
        return list(torch._foreach_lerp(gradients, means, MOMENTUM))
