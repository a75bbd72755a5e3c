"""AdamW with its two moments in 8 bits each, a scale for every 256 elements.

Moments are decoded, moved and encoded again, a piece of a weight at a time (Dettmers et al. 2022,
"8-bit Optimizers via Block-wise Quantization"). The levels of the 8 bits are closer together near
zero: squares for the mean, which has a sign, and fourth powers for the mean square. To round to the
nearest level would lose every change that is smaller than half a level, and β₂ makes only small
ones; so a value is rounded up as often as it is far above the lower level, by thresholds that
depend on the step and the position alone. A run that is resumed is therefore the same bit for bit.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

BLOCK = 256
# Elements that are decoded at one time: a CPU wants them in its cache, a GPU few kernels.
PIECE = {"cpu": 2**17, "cuda": 2**25}
MEAN_LEVELS, SQUARE_LEVELS = 127, 255
GOLDEN = 0.6180339887498949  # its multiples, modulo 1, fill the interval evenly
Made = dict[int, tuple[Tensor, Tensor]]
"""Thresholds and rates of a step, which are the same for all weights of a group."""
SMALLEST = torch.finfo(torch.float32).tiny


def encode_mean(mean: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Round blocks (N, 256) to ±scale·(code/127)²; return codes, as floats, and scales (N,)."""
    powers = mean.abs()
    scale = powers.amax(dim=1).clamp(min=SMALLEST)
    powers.mul_((MEAN_LEVELS**2 / scale)[:, None])  # code², before it is rounded
    lower = powers.sqrt().floor_()
    code = _rounded(powers, lower, lower.square(), lower.mul(2).add_(1), threshold)
    return code.copysign_(mean), scale


def decode_mean(code: Tensor, scale: Tensor) -> Tensor:
    """Compute ±scale·(code/127)² of blocks, in float32."""
    levels = code.float()
    return levels.abs().mul_(levels).mul_((scale / MEAN_LEVELS**2)[:, None])


def encode_square(square: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Round blocks (N, 256) to scale·(code/255)⁴; return codes, as floats, and scales (N,).

    What is above zero stays so, because a mean will be divided by its root.
    """
    scale = square.amax(dim=1).clamp(min=SMALLEST)
    powers = square * (1 / scale)[:, None]
    powers.mul_(SQUARE_LEVELS**4)  # code⁴, before it is rounded
    positive = powers.sign()
    lower = powers.sqrt().sqrt_().floor_()
    below, above = lower.square().square_(), lower.add(1).square_().square_()
    code = _rounded(powers, lower, below, above.sub_(below), threshold)
    return torch.maximum(code, positive), scale


def decode_square(code: Tensor, scale: Tensor) -> Tensor:
    """Compute scale·(code/255)⁴ of blocks, in float32."""
    return code.float().square_().square_().mul_((scale / SQUARE_LEVELS**4)[:, None])


def _rounded(
    powers: Tensor, lower: Tensor, below: Tensor, width: Tensor, threshold: Tensor
) -> Tensor:
    """Return the code `lower`, or the next where `powers` is far enough above its own power."""
    return powers.sub_(below).div_(width).sub_(threshold).ceil_().add_(lower)


def thresholds(step: int, device: torch.device) -> Tensor:
    """Between 0 and 1, for each position in a block: where a remainder is rounded up.

    Over the steps, each position has thresholds that are spread evenly. None is so small that the
    inexact power of the highest level would be rounded up.
    """
    positions = torch.arange(BLOCK, dtype=torch.float64, device=device)
    return ((positions * GOLDEN**2 + step * GOLDEN) % 1).clamp(min=1 / 512).float()


def move(
    weight: Tensor,
    grad: Tensor,
    mean: tuple[Tensor, Tensor],
    square: tuple[Tensor, Tensor],
    threshold: Tensor,
    rates: Tensor,
) -> None:
    """Update a piece of a weight and its moments in place, all as blocks (N, 256)."""
    beta1, beta2, rate, decay, correction, epsilon = rates.unbind()
    grad = grad.float()
    average = decode_mean(*mean).lerp_(grad, 1 - beta1)
    average_square = decode_square(*square).mul_(beta2).add_(grad.square().mul_(1 - beta2))
    denominator = average_square.sqrt().mul_(correction).add_(epsilon)
    weight.mul_(decay).sub_(denominator.reciprocal_().mul_(average).mul_(rate))
    for stored, encoded in (
        (mean, encode_mean(average, threshold)),
        (square, encode_square(average_square, threshold)),
    ):
        for old, new in zip(stored, encoded, strict=True):
            old.copy_(new)


class Int8AdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov & Hutter 2019) whose state takes 2 bytes a weight instead of 8."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        betas: tuple[float, float],
        eps: float,
        compiled: bool = False,
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.move = torch.compile(move, dynamic=True) if compiled else move

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        for group in self.param_groups:
            made: Made = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, group, made)

    def move_in_backward(self) -> None:
        """From now on, move each weight as soon as its gradient is whole, and drop that."""
        optimizer = weakref.proxy(self)  # weights that are kept shall not keep the state

        @torch.no_grad()
        def moving(group: dict[str, Any], made: Made, weight: Tensor) -> None:
            optimizer._move(weight, group, made)
            weight.grad = None

        for group in self.param_groups:
            made: Made = {}
            for weight in group["params"]:
                weight.register_post_accumulate_grad_hook(partial(moving, group, made))

    def _next_step(self, weight: Tensor) -> int:
        """Count a step of a weight, whose state is made at the first one."""
        state = self.state[weight]
        if not state:
            state |= _zeros(weight)
        state["step"] = state["step"].cpu() + 1  # a GPU would be waited for at each step
        return int(state["step"])

    def _move(self, weight: Tensor, group: dict[str, Any], made: Made) -> None:
        step, state = self._next_step(weight), self.state[weight]
        if step not in made:
            made.clear()
            made[step] = thresholds(step, weight.device), _rates(step, group, weight.device)
        threshold, rates = made[step]
        assert weight.grad is not None
        tensors = [weight.detach().view(-1), weight.grad.reshape(-1)]
        tensors += [state["exp_avg"], state["exp_avg_sq"]]
        scales = state["exp_avg_scale"], state["exp_avg_sq_scale"]
        whole = weight.numel() // BLOCK * BLOCK
        size = PIECE.get(weight.device.type, PIECE["cuda"])
        for start in range(0, whole, size):
            part = slice(start, min(start + size, whole))
            blocks = slice(part.start // BLOCK, part.stop // BLOCK)
            moved, grad, *codes = (tensor[part].view(-1, BLOCK) for tensor in tensors)
            means, squares = zip(codes, (scale[blocks] for scale in scales), strict=True)
            self.move(moved, grad, means, squares, threshold, rates)
        if whole < weight.numel():  # a last block that is shorter
            moved, grad, *codes = (tensor[whole:].view(1, -1) for tensor in tensors)
            means, squares = zip(codes, (scale[-1:] for scale in scales), strict=True)
            move(moved, grad, means, squares, threshold[: moved.shape[1]], rates)


def _zeros(weight: Tensor) -> dict[str, Tensor]:
    """Make the state of a weight before its first step, with the names of torch's AdamW."""
    n_blocks, device = -(-weight.numel() // BLOCK), weight.device
    return {
        "step": torch.zeros(()),
        "exp_avg": torch.zeros(weight.numel(), dtype=torch.int8, device=device),
        "exp_avg_scale": torch.zeros(n_blocks, device=device),
        "exp_avg_sq": torch.zeros(weight.numel(), dtype=torch.uint8, device=device),
        "exp_avg_sq_scale": torch.zeros(n_blocks, device=device),
    }


def _rates(step: int, group: dict[str, Any], device: torch.device) -> Tensor:
    """Compute what a step multiplies with: tensors, so that no value is compiled in."""
    (beta1, beta2), rate = group["betas"], group["lr"]
    correction = (1 - beta2**step) ** -0.5
    decay = 1 - rate * group["weight_decay"]
    values = [beta1, beta2, rate / (1 - beta1**step), decay, correction, group["eps"]]
    return torch.tensor(values, dtype=torch.float32).to(device, non_blocking=True)
