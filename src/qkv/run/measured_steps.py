"""A few true training steps on random data, to measure how long one takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv.config import ModelConfig, Recipe
from qkv.data.batch import Batch, Side
from qkv.device import memory_errors
from qkv.model import build_model, recompute_blocks
from qkv.plan.passes import BatchSize
from qkv.run.job import objective_of
from qkv.run.lora import lora_model
from qkv.run.start import Start
from qkv.training import accumulate, build_loss, build_optimizer, update

STEPS = 4  # at most, of which the first does not count if there are others, and the middle one does
ENOUGH = 4.0  # seconds after which no further step is taken
PART = 1024  # tokens of a batch that a CPU computes to time it; the rest takes as long for each


def measure_step(
    recipe: Recipe,
    config: ModelConfig,
    size: BatchSize,
    device: torch.device,
    start: Start | None = None,
) -> float:
    """Seconds of a step: the median of a few, with batches of random tokens.

    Weights are fresh, but for LoRA beside those of the start.
    """
    train = recipe.train
    if start and train.lora_rank:
        model = lora_model(start, config, recipe, device, keep_head=False)
    else:
        model = build_model(config).to(device)
    recompute_blocks(model.train(), train.recompute)
    loss_sum = build_loss(model, train, device, True, objective_of(recipe))
    optimizer = build_optimizer(model, train)
    part = size
    if device.type == "cpu":
        together = rows_together(recipe.task)
        least = 2 if recipe.task == "embed" else together  # texts are compared with others
        rows = max(least, PART // size.width // together * together)
        part = size.with_rows(min(size.rows, rows))
    batch = random_batch(recipe, config, part).to(device)

    def seconds(work: Callable[[], object]) -> float:
        begun = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begun

    def step() -> float:
        of_batch = seconds(lambda: accumulate(loss_sum, [batch], train.label_smoothing))
        of_update = seconds(lambda: update(model, optimizer, train.clip))
        return of_batch * train.accumulate * size.rows / part.rows + of_update

    begun = time.perf_counter()
    with memory_errors(device, "lower train.batch_tokens, or plan for a GPU by its name"):
        times = [step()]
        while len(times) < STEPS and time.perf_counter() - begun < ENOUGH:
            times.append(step())
    counted = sorted(times[1:] or times)
    return counted[len(counted) // 2]


def rows_together(task: str) -> int:
    """Return how many rows of a batch belong together: the two answers of a preference."""
    return 2 if task == "prefer" else 1


def random_batch(recipe: Recipe, config: ModelConfig, size: BatchSize) -> Batch:
    """Make a batch of these sizes of random tokens and labels."""
    rows, target = size.rows, size.target
    source = _side(config, size, size.source) if size.source else None
    if recipe.task == "embed":
        source = _side(config, size, target)
    labels, more = _labels(recipe, config, size)
    return Batch(source, _side(config, size, target), labels, size.labels or rows, **more)


def _labels(recipe: Recipe, config: ModelConfig, size: BatchSize) -> tuple[Tensor, dict[str, Any]]:
    rows, target = size.rows, size.target
    if recipe.task in ("fill", "tag"):
        chosen = torch.randperm(size.tokens)[: size.labels]
        n_classes = config.vocab_size if recipe.task == "fill" else config.n_labels
        return torch.randint(n_classes, (size.labels,)), {"positions": chosen}
    if recipe.task == "classify":
        return torch.randint(config.n_labels, (rows,)), {}
    if recipe.task == "answer":
        return torch.randint(target, (rows, 2)), {}
    if recipe.task == "embed":
        return torch.arange(rows)[:, None].expand(rows, 2), {}
    labels = torch.randint(config.vocab_size, (rows, target))
    if recipe.task == "prefer":
        return labels, {"opinions": torch.zeros(rows // 2, 2)}
    return labels, {}


def _side(config: ModelConfig, size: BatchSize, length: int) -> Side:
    rows = size.rows
    if config.patch_size:
        pixels = torch.rand(rows, config.n_channels, config.image_size, config.image_size)
        return Side(pixels, None, None, length)
    tokens = torch.randint(config.vocab_size, (rows, length))
    lengths = None if size.separated else torch.full((rows,), length)
    first = torch.zeros(rows, length, dtype=torch.long) if size.separated else None
    segments = torch.zeros_like(tokens) if config.n_segments else None
    return Side(tokens, lengths, None, length, first, segments)
