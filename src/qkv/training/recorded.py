"""Recorded steps: on a GPU, the passes of a step are recorded once and replayed.

A small model's step is some hundreds of short kernels, and launching them one by one takes longer
than running them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from qkv.cuda_graphs import assign, cloned, kind, leaves, record, renew_randomness
from qkv.data.batch import Batch

if TYPE_CHECKING:
    from qkv.training.step import LossSum

PLAIN_STEPS = 3  # before the recording: code is compiled, libraries choose their kernels
MOST_MEMORY = 0.25  # of the GPU; a recording keeps its own, and large steps gain little


class RecordedLoss:
    """The mean loss of a batch and the gradients of all weights, recorded for batches of a kind."""

    def __init__(self, loss_sum: LossSum, model: nn.Module, device: torch.device) -> None:
        self.loss_sum, self.model, self.device = loss_sum, model, device
        self._n_plain = 0
        self._kind: Hashable = ()
        self._replay: Callable[[], None] | None = None
        self._batch: Batch  # what is recorded reads
        self._share: Tensor  # 1 / number of labels
        self._loss: Tensor  # what is recorded writes
        self._gradients: list[tuple[nn.Parameter, Tensor]]

    def backward(self, batch: Batch, smoothing: float) -> Tensor | None:
        """Compute the gradients of a batch's mean loss and return the loss; None: run it plainly.

        The first batches are run so, and those of another kind than they.
        """
        found = kind(replace(batch, n_labels=0)), smoothing
        self._kind = self._kind or found
        self._n_plain += found == self._kind
        if found != self._kind or self._n_plain <= PLAIN_STEPS:
            return None
        if self._replay is not None:
            assign([*leaves(self._batch)], [*leaves(batch)])
        elif not (self._has_room() and self._record(batch, smoothing)):
            return None
        assert self._replay is not None
        self._share.fill_(1 / max(1, batch.n_labels))
        self._replay()
        for weight, gradient in self._gradients:
            weight.grad = gradient
        return self._loss.clone()

    def _has_room(self) -> bool:
        total = torch.cuda.get_device_properties(self.device).total_memory
        return torch.cuda.max_memory_allocated(self.device) <= MOST_MEMORY * total

    def _record(self, batch: Batch, smoothing: float) -> bool:
        """Record the passes of this batch without running them; return whether that worked."""
        self._batch, self._share = cloned(batch), torch.ones((), device=self.device)

        def passes() -> None:
            loss = self.loss_sum(self._batch, smoothing) * self._share
            loss.backward()
            self._loss = loss.detach()

        torch.cuda.empty_cache()  # what plain steps have used
        try:
            self._replay = record(passes, self.device)
        except RuntimeError as error:
            self.model.zero_grad(set_to_none=True)
            renew_randomness(self.device)
            self._kind = "none"
            reason = str(error).partition("\n")[0]
            warnings.warn(f"steps go on unrecorded: {reason}", stacklevel=2)
            return False
        weights = self.model.parameters()
        self._gradients = [(weight, weight.grad) for weight in weights if weight.grad is not None]
        return True
