"""What several labs need: seeds, a small training loop, and numbers as people write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, stdev

import torch
from torch import Tensor, nn


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from this seed inside the block; outside, chance goes on as if nothing had been."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def n_weights(model: nn.Module) -> int:
    """How many numbers a model learns."""
    return sum(weight.numel() for weight in model.parameters())


def fit(
    parameters: Iterable[nn.Parameter],
    loss: Callable[[int], Tensor],
    steps: int,
    lr: float = 3e-3,
    warmup: int = 20,
    clip: float = 1.0,
) -> list[float]:
    """Adam with warm-up and a cosine down to 0 on `loss(step)`; the losses, step by step."""
    parameters = list(parameters)
    optimizer = torch.optim.Adam(parameters, lr=lr, betas=(0.9, 0.98))
    losses = []
    for step in range(steps):
        rise = min(1.0, (step + 1) / max(1, warmup))
        for group in optimizer.param_groups:
            group["lr"] = lr * rise * 0.5 * (1 + math.cos(math.pi * step / steps))
        value = loss(step)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        losses.append(value.detach())
    return torch.stack(losses).tolist() if losses else []


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and the standard deviation of the sample (0 for a single value)."""
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


def plus_minus(values: Sequence[float], digits: int = 1) -> str:
    """`mean ± spread`, as it stands in a table."""
    mean, spread = mean_and_spread(values)
    return f"{mean:.{digits}f} ± {spread:.{digits}f}" if len(values) > 1 else f"{mean:.{digits}f}"


def tiny(value: float, digits: int = 1) -> str:
    """A number that may be very small, or nothing at all."""
    return f"{value:.{digits}e}" if value else "0"


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The b of cost ≈ a·size^b, fitted to logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    x_mean, y_mean = fmean(x), fmean(y)
    rise = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return rise / sum((a - x_mean) ** 2 for a in x)
