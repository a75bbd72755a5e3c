"""What several labs need: small models, a training loop, and numbers as people write them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from statistics import fmean, stdev
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model import Decoder, Encoder, EncoderDecoder, Layout

T = TypeVar("T")
IGNORE = -100  # the label at which torch's cross-entropy takes no loss


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from this seed inside the block, and put the global random state back after it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _config(
    family: str, vocab_size: int, d_model: int, n_layers: int, **settings: Any
) -> ModelConfig:
    """Return these settings, and where they are silent what most labs choose."""
    common = {"n_heads": 4, "d_ff": 2 * d_model, "norm_position": "pre", "dropout": 0.0}
    head = {"head": "token"} if "n_labels" in settings else {}
    layers = {f"n_{stack}_layers": n_layers for stack in family.split("-")}
    sizes = {"family": family, "vocab_size": vocab_size, "d_model": d_model, **layers}
    return ModelConfig(**{**sizes, **common, **head, **settings})


def encoder(
    vocab_size: int, d_model: int, n_layers: int, seed: int | None = None, **settings: Any
) -> Encoder:
    """Build a small encoder, which tags tokens if it has labels.

    A seed of None draws from the global random state.
    """
    with nullcontext() if seed is None else seeded(seed):
        return Encoder(_config("encoder", vocab_size, d_model, n_layers, **settings))


def decoder(
    vocab_size: int, d_model: int, n_layers: int, seed: int | None = None, **settings: Any
) -> Decoder:
    """Build a small decoder, with a seed as `encoder`."""
    with nullcontext() if seed is None else seeded(seed):
        return Decoder(_config("decoder", vocab_size, d_model, n_layers, **settings))


def encoder_decoder(
    vocab_size: int, d_model: int, n_layers: int, seed: int | None = None, **settings: Any
) -> EncoderDecoder:
    """Build a small encoder-decoder whose stacks have as many layers, with a seed as `encoder`."""
    with nullcontext() if seed is None else seeded(seed):
        return EncoderDecoder(_config("encoder-decoder", vocab_size, d_model, n_layers, **settings))


def n_weights(model: nn.Module) -> int:
    """Count the parameters of a model, shared ones once."""
    return sum(weight.numel() for weight in model.parameters())


def fit(
    model: nn.Module,
    loss: Callable[[int], Tensor],
    steps: int,
    lr: float = 3e-3,
    warmup: int = 20,
    clip: float = 1.0,
) -> list[float]:
    """Minimise `loss(step)` by Adam with warm-up and cosine decay; return the losses."""
    parameters = list(model.parameters())
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


def at_best_rate(
    run: Callable[[float, int], T],
    rates: Sequence[float],
    seeds: Sequence[int],
    score: Callable[[T], float],
) -> tuple[float, list[T]]:
    """Run all seeds at the learning rate at which the first seed's run has the highest score."""
    first = {rate: run(rate, seeds[0]) for rate in rates}
    best = max(rates, key=lambda rate: score(first[rate]))
    return best, [first[best], *(run(best, seed) for seed in seeds[1:])]


def least_seconds(
    work: Callable[[], object],
    repeats: int = 3,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Return the seconds of a call, on a CPU: the least of several, since disturbances only add."""
    seconds = []
    for _ in range(repeats):
        began = clock()
        work()
        seconds.append(clock() - began)
    return min(seconds)


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy (B, T, V) against labels (B, T), in nats; IGNORE takes no loss."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """Lay rows of token ids in one tensor, filled up to the longest, (B, T)."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


def lengths(rows: Sequence[Sequence[int]]) -> Layout:
    """Return the layout of rows padded to the longest."""
    return Layout(lengths=torch.tensor([len(row) for row in rows]))


def where(items: Iterable[T], **wanted: Any) -> list[T]:
    """Select the items whose attributes equal these values."""
    return [
        item
        for item in items
        if all(getattr(item, name) == value for name, value in wanted.items())
    ]


def column(items: Iterable[Any], name: str) -> list[Any]:
    """Return one attribute of each item."""
    return [getattr(item, name) for item in items]


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation of a sample (0 for a single value)."""
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


def plus_minus(values: Sequence[float], digits: int = 1, scale: float = 1) -> str:
    """Write `mean ± spread` of values times a scale."""
    average, spread = mean_and_spread([scale * value for value in values])
    spread_text = f" ± {spread:.{digits}f}" if len(values) > 1 else ""
    return f"{average:.{digits}f}{spread_text}"


def percent(values: Sequence[float]) -> str:
    """Write `mean ± spread` of shares in percent."""
    return plus_minus(values, scale=100)


def tiny(value: float, digits: int = 1) -> str:
    """Write a number that may be very small or 0."""
    return f"{value:.{digits}e}" if value else "0"


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Fit the b of cost ≈ a·size^b to logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    x_mean, y_mean = fmean(x), fmean(y)
    rise = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return rise / sum((a - x_mean) ** 2 for a in x)


def word_before(rows: int, length: int, n_words: int) -> tuple[Tensor, Tensor]:
    """Draw random words (B, T) and, as labels, the word before each but the first, (B, T-1)."""
    words = torch.randint(n_words, (rows, length))
    return words, words[:, :-1]
