"""One training step: teacher-forced pass, loss, gradients, update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from qkv.config import TrainConfig
from qkv.data.batch import Batch
from qkv.device import is_on, mixed_precision
from qkv.model import Model, own_call, use_regions
from qkv.training.distribution import ALONE, Distribution
from qkv.training.objectives import Objective, next_token

LossSum = Callable[[Batch, float], Tensor]


def build_loss(
    model: Model,
    config: TrainConfig,
    device: torch.device,
    one_shape: bool = False,
    objective: Objective = next_token,
) -> LossSum:
    """Build the summed loss of a batch, in the chosen precision and compiled if that is on.

    "auto" compiles only where all batches have one shape (`one_shape`): else compiling takes longer
    than many a fine-tuning.
    """
    run = None
    if is_on(config.compile, device) and (one_shape or config.compile == "on"):
        run = torch.compile(own_call(), dynamic=not one_shape)

    def loss_sum(batch: Batch, smoothing: float) -> Tensor:
        with mixed_precision(config, device), use_regions(run):
            return objective(model, batch, smoothing)

    return loss_sum


def accumulate(
    loss_sum: LossSum,
    batches: Sequence[Batch],
    smoothing: float,
    workers: Distribution = ALONE,
    syncing: Callable[[bool], AbstractContextManager[Any]] = lambda last: nullcontext(),
) -> Tensor:
    """Add up the gradients of a step's batches; return this worker's share of the mean loss.

    Each sum is divided by the labels of all batches of all workers, so that neither their number
    nor how the step was split into batches changes the result. `syncing` is told whether a batch is
    the last one, whose gradients the workers exchange.
    """
    # There may be none, as in a text of unknown characters.
    n_labels = max(1, workers.reduce_labels(sum(batch.n_labels for batch in batches)))
    losses = []
    for number, batch in enumerate(batches, 1):
        with syncing(number == len(batches)):
            loss = loss_sum(batch, smoothing) / n_labels
            loss = loss * 0.0 if batch.stand_in else loss
            # Gradients are averaged over the workers, but must be summed.
            (loss * workers.data_size if workers.data_size > 1 else loss).backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def update(model: nn.Module, optimizer: torch.optim.Optimizer, clip: float) -> None:
    """Clip the gradient's norm, update the weights, drop the gradient."""
    if clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
