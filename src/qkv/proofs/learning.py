"""Proofs that training does not depend on how a step is split, or on an interruption."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.config import TrainConfig
from qkv.data import Batch, Stream
from qkv.model import Model
from qkv.proofs.lessons import Lesson, lesson
from qkv.proofs.model_under_test import LIMITS, ModelUnderTest
from qkv.proofs.proof import Measured, NotApplicableError, largest
from qkv.training import Layout, Trainer, accumulate, build_loss

CPU = torch.device("cpu")
MOST = 500_000_000  # weights; with gradients and Adam's memory, a larger model may not fit here
STEPS = 2  # before an interruption, and as many after it


def accumulation(tested: ModelUnderTest) -> Measured:
    """The gradients of a step in one batch, and in several one after the other."""
    _check_size(tested)
    learnt = lesson(tested)
    if learnt.across:
        raise NotApplicableError(
            "its loss tells each text from the others of its batch, so that larger batches are "
            "another task"
        )
    model = _learner(tested, next(tested.model.parameters()).dtype)
    items = np.arange(len(learnt.items))
    split = [items[:1], items[1:]]  # of different sizes, or wrong weights would cancel out
    expected = _gradients(model, learnt, [items])
    accumulated = _gradients(model, learnt, split)
    pairs = zip(accumulated, expected, strict=True)
    apart = torch.stack([(ours - theirs).norm() for ours, theirs in pairs]).norm()
    size = torch.stack([gradient.norm() for gradient in expected]).norm()
    size = size.clamp(min=torch.finfo(size.dtype).tiny)  # one label alone teaches nothing
    return Measured(float(apart / size), LIMITS[size.dtype])


def _gradients(model: Model, learnt: Lesson, split: list[npt.NDArray[np.int64]]) -> list[Tensor]:
    """The gradients of a step in these batches; without dropout, which would differ by batch."""
    config = _settings()
    loss = build_loss(model, config, CPU, objective=learnt.objective)
    batches: list[Batch] = [learnt.items.batch(indices) for indices in split]
    accumulate(loss, [_as_precise(batch, model) for batch in batches], 0.0)
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    model.zero_grad(set_to_none=True)
    return gradients


def _as_precise(batch: Batch, model: Model) -> Batch:
    """Pixels in the model's precision."""
    side, dtype = batch.target, next(model.parameters()).dtype
    if not side.tokens.is_floating_point():
        return batch
    return replace(batch, target=replace(side, tokens=side.tokens.to(dtype)))


def resumption(tested: ModelUnderTest) -> Measured:
    """The weights after some steps, and after as many of which a checkpoint is in the middle."""
    _check_size(tested)
    learnt, model = lesson(tested), _learner(tested, torch.float32).train()
    with tempfile.TemporaryDirectory(prefix="qkv-verify-") as folder:
        whole = _trainer(model, learnt, Path(folder))
        _go_on(whole)
        whole.save()
        whole.writing.wait()
        _go_on(whole)
        expected = [weight.detach().clone() for weight in model.parameters()]
        del whole  # and with it Adam's memory
        for weight in model.parameters():
            weight.data.zero_()  # all must come from the checkpoint
        resumed = _trainer(model, learnt, Path(folder))
        if not resumed.resume():
            return Measured(None, 0.0, "the checkpoint was not found again")
        _go_on(resumed)
    pairs = zip(model.parameters(), expected, strict=True)
    apart = largest(float((weight.detach() - wanted).abs().max()) for weight, wanted in pairs)
    return Measured(apart, 0.0)


def _learner(tested: ModelUnderTest, dtype: torch.dtype) -> Model:
    """A copy that may learn, laid in memory as in training, by rows."""
    model = copy.deepcopy(tested.model).to(CPU, dtype)
    for weight in model.parameters():
        weight.data = weight.data.contiguous()
    return model


def _go_on(trainer: Trainer) -> None:
    for batches in islice(trainer.stream.steps_from(trainer.state.step), STEPS):
        trainer.take_step(batches)


def _trainer(model: Model, learnt: Lesson, folder: Path) -> Trainer:
    config = _settings()
    return Trainer(
        layout=Layout(model, build_loss(model, config, CPU, objective=learnt.objective)),
        stream=Stream(learnt.items, learnt.batch_tokens),
        config=config,
        device=CPU,
        folder=folder,
        evaluate=dict,
        keep=lambda: None,
        reporters=[],
        baseline=0.0,
    )


def _settings() -> TrainConfig:
    return TrainConfig(
        steps=2 * STEPS,
        warmup=2 * STEPS,
        lr=1e-4,
        device="cpu",
        precision="float32",
        compile="off",
        packing="off",
    )


def _check_size(tested: ModelUnderTest) -> None:
    if tested.n_weights > MOST:
        raise NotApplicableError(
            f"left out, for training {tested.n_weights / 1e9:.1f} billion weights takes much "
            f"memory and time"
        )
