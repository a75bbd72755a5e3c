"""A few true training steps on random data, to measure how long one takes."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from qkv.config import ModelConfig, Recipe
from qkv.data.batch import Batch, Side
from qkv.device import memory_errors
from qkv.model import build_model, recompute_blocks
from qkv.plan.passes import BatchSize
from qkv.training import Objective, build_loss, build_optimizer, consistent_next_token
from qkv.training.objectives import (
    contrast,
    masked_tokens,
    one_class,
    preference,
    spans,
    token_labels,
)
from qkv.training.step import accumulate, update

STEPS = 3  # of which the middle one counts, after one that does not


def measure_step(
    recipe: Recipe, config: ModelConfig, size: BatchSize, device: torch.device
) -> float:
    """Seconds of a step: the median of a few, with batches of random tokens."""
    train = recipe.train
    model = build_model(config).to(device).train()
    recompute_blocks(model, train.recompute)
    loss_sum = build_loss(model, train, device, True, objective_of(recipe))
    optimizer = build_optimizer(model, train)
    batches = [random_batch(recipe, config, size).to(device) for _ in range(train.accumulate)]

    def step() -> float:
        begun = time.perf_counter()
        accumulate(loss_sum, batches, train.label_smoothing)
        update(model, optimizer, train.clip)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begun

    with memory_errors(device, "plan without --measure, or lower train.batch_tokens"):
        step()
        return sorted(step() for _ in range(STEPS))[STEPS // 2]


def objective_of(recipe: Recipe) -> Objective:
    """The objective of a task, as its job would choose it without knowing the data."""
    train = recipe.train
    objectives: dict[str, Objective] = {
        "fill": masked_tokens(),
        "classify": one_class(consistency=train.consistency),
        "tag": token_labels(train.consistency),
        "answer": spans(train.consistency),
        "embed": contrast(recipe.embed.pooling, recipe.embed.temperature),
        "prefer": preference(recipe.prefer.beta),
    }
    return objectives.get(recipe.task, consistent_next_token(train.consistency))


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
