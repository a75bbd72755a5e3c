"""One training step: teacher-forced pass, loss, gradients, update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from qkv.config import TrainConfig
from qkv.data import Batch, Side
from qkv.device import is_on, mixed_precision
from qkv.model import Decoder, EncoderDecoder, Layout
from qkv.train.loss import cross_entropy

LossSum = Callable[[Batch, float], Tensor]
Trained = EncoderDecoder | Decoder


def layout_of(side: Side) -> Layout:
    """How the model is to read one side of a batch."""
    return Layout(side.lengths, side.offsets, side.longest, side.first)


def summed_loss(
    model: Trained,
    tokens: tuple[Tensor, ...],
    layouts: tuple[Layout, ...],
    labels: Tensor,
    smoothing: float,
) -> Tensor:
    """The whole pass in parallel, from tokens (of source and target) to the summed loss."""
    hidden = model.hidden(*tokens, *layouts)  # type: ignore[arg-type]
    projection = model.output.projection
    return cross_entropy(hidden, projection.weight, projection.bias, labels, smoothing)


def build_loss(
    model: Trained, config: TrainConfig, device: torch.device, one_shape: bool = False
) -> LossSum:
    """The loss of a batch, in the chosen precision, compiled where that is on."""
    compute = summed_loss
    if is_on(config.compile, device):
        compute = torch.compile(summed_loss, fullgraph=True, dynamic=not one_shape)

    def loss_sum(batch: Batch, smoothing: float) -> Tensor:
        sides = [side for side in (batch.source, batch.target) if side is not None]
        tokens, layouts = tuple(side.tokens for side in sides), tuple(map(layout_of, sides))
        with mixed_precision(config, device):
            return compute(model, tokens, layouts, batch.labels, smoothing)

    return loss_sum


def accumulate(loss_sum: LossSum, batches: Sequence[Batch], smoothing: float) -> Tensor:
    """Add up the gradients of a step's batches; return the mean loss.

    Each batch's sum is divided by the labels of the whole step, so that the result does not depend
    on how the step was split into batches.
    """
    n_labels = sum(batch.n_labels for batch in batches)
    losses = []
    for batch in batches:
        loss = loss_sum(batch, smoothing) / n_labels
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def update(model: nn.Module, optimizer: torch.optim.Optimizer, clip: float) -> None:
    """Clip the gradient's norm, move the weights, forget the gradient."""
    if clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
