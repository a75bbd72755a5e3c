"""The training loop: step, validate, keep, until done; exact when it is killed and resumed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from qkv.config import TrainConfig
from qkv.data import Batch, prefetch
from qkv.errors import UserError
from qkv.model import Model
from qkv.training.checkpoint import (
    Progress,
    averaged,
    load_checkpoint,
    newest_checkpoints,
    save_checkpoint,
    snapshot_path,
    tidy,
)
from qkv.training.log import Reporter
from qkv.training.optimizer import build_optimizer, set_learning_rate
from qkv.training.schedule import learning_rate
from qkv.training.step import LossSum, accumulate, update
from qkv.training.validate import complaint
from qkv.weights import load_weights, write_tensors

Scores = dict[str, float]
LOG_EVERY = 10  # steps between looks at the losses; on a GPU each look waits for it


class Stream(Protocol):
    """Batches without end, from any step on: the same step gives the same batches."""

    def steps_from(self, step: int = 0) -> Iterator[list[Batch]]:
        """Yield the batches of each step."""


@dataclass
class Trainer:
    """Everything a run works with. What it remembers from step to step is `progress`."""

    model: Model
    stream: Stream
    loss_sum: LossSum
    config: TrainConfig
    device: torch.device
    folder: Path  # for checkpoints
    evaluate: Callable[[], Scores]  # measures valid_loss at least
    keep: Callable[[], None]  # saves the model as the best so far
    reporters: Sequence[Reporter]
    frequencies_loss: float  # what knowing each token's frequency alone would score
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.optimizer = build_optimizer(self.model, self.config)
        self.pending: list[dict[str, Any]] = []  # steps whose loss nobody has looked at yet
        self.tokens, self.clock = 0, time.perf_counter()

    def resume(self) -> bool:
        """Go on from the newest whole checkpoint; False where there is none."""
        newest = newest_checkpoints(self.folder, 1)
        if newest:
            self.progress = load_checkpoint(newest[0], self.model, self.optimizer)
        return bool(newest)

    def run(self) -> Progress:
        """Train until the steps, the time or the patience are used up."""
        self.model.train()
        self.clock = time.perf_counter()
        done = self.finished()
        with closing(self._batches()) as steps:
            while not done:
                self.take_step(next(steps))
                done = self.finished()
                if done or self._due(self.config.valid_every):
                    self.validate()
                    done = self.finished()
                elif self._due(LOG_EVERY):
                    self.flush()
                if done or self._due(self.config.checkpoint_every):
                    self.save()
        if self.progress.validated < self.progress.step:  # resumed, and over before any step
            self.validate()
            self.save()
        self.keep_average()
        return self.progress

    def _batches(self) -> Generator[list[Batch]]:
        def to_device(batches: list[Batch]) -> list[Batch]:
            return [batch.to(self.device) for batch in batches]

        return prefetch(self.stream.steps_from(self.progress.step), to_device)

    def _due(self, every: int) -> bool:
        """Whether something that happens every so many steps happens now."""
        return self.progress.step % every == 0

    def finished(self) -> bool:
        """Whether the run's steps, seconds or patience are used up."""
        config, progress = self.config, self.progress
        out_of_time = config.seconds and progress.seconds + self._elapsed() >= config.seconds
        out_of_patience = config.patience and progress.stale >= config.patience
        return bool(progress.step >= config.steps or out_of_time or out_of_patience)

    def take_step(self, batches: list[Batch]) -> None:
        """One update. Dropout's randomness is a pure function of the seed and the step."""
        self.progress.step += 1
        step, config = self.progress.step, self.config
        torch.manual_seed(config.seed * 1_000_003 + step)
        rate = learning_rate(step, config, self.model.config.d_model)
        set_learning_rate(self.optimizer, rate)
        loss = accumulate(self.loss_sum, batches, config.label_smoothing)
        update(self.model, self.optimizer, config.clip)
        self.tokens += sum(batch.n_tokens for batch in batches)
        self.pending.append({"step": step, "loss": loss, "lr": rate})

    def _elapsed(self) -> float:
        return time.perf_counter() - self.clock

    def settle(self) -> None:
        """Look at the losses since the last look; stop at one that is not a number."""
        fresh = [record for record in self.pending if "tokens_per_second" not in record]
        losses = [float(record["loss"]) for record in fresh]  # waits for the GPU
        elapsed = self._elapsed()
        rate = round(self.tokens / elapsed, 1) if elapsed > 0 else 0.0
        for record, loss in zip(fresh, losses, strict=True):
            self._check_finite("loss", loss, record["step"])
            record |= {"loss": loss, "tokens_per_second": rate}

    def flush(self, scores: Scores | None = None) -> None:
        """Report the steps since the last report."""
        self.settle()
        if scores and self.pending:
            self.pending[-1] |= scores
        for record in self.pending:
            for reporter in self.reporters:
                reporter.record(record)
        self.pending, self.tokens = [], 0
        self._restart_clock()

    def _restart_clock(self) -> None:
        self.progress.seconds += self._elapsed()
        self.clock = time.perf_counter()

    def _check_finite(self, what: str, value: float, step: int) -> None:
        if not math.isfinite(value):
            rate = learning_rate(step, self.config, self.model.config.d_model)
            raise UserError(
                f"Training stopped: the {what} became {value} at step {step} (learning rate "
                f"{rate:.2g}); lower train.lr or train.clip, or use more train.warmup. "
                f"The checkpoints in {self.folder} are from before that."
            )

    def _check_weights(self) -> None:
        """A loss can be finite and its gradient not: such weights are neither measured nor kept."""
        largest = torch.stack([p.detach().abs().max() for p in self.model.parameters()]).max()
        self._check_finite("largest weight", float(largest), self.progress.step)

    def validate(self) -> None:
        """Measure, remember whether it was the best, and keep the weights to average."""
        progress = self.progress
        self.settle()
        self._check_weights()
        scores = self.evaluate()
        self._check_finite("validation loss", scores["valid_loss"], progress.step)
        self._complain(scores)
        value = self._value(scores)
        progress.validated = progress.step
        if progress.best is None or value > progress.best:
            progress.best, progress.best_step, progress.stale = value, progress.step, 0
            self.keep()
        else:
            progress.stale += 1
        self._snapshot()
        self.flush(scores)

    def _complain(self, scores: Scores) -> None:
        """Say so when a run that has warmed up has learnt nothing.

        A loss may rise while labels get better: a run that is judged by those says how good it is.
        """
        by_labels = self.config.metric in ("accuracy", "f1", "correlation")
        if by_labels or self.progress.step < 2 * self.config.warmup:
            return
        sentence = complaint(
            scores["valid_loss"], self.frequencies_loss, scores.get("wrong_source_loss")
        )
        if sentence:
            self.say(f"warning: {sentence}")

    def _value(self, scores: Scores) -> float:
        """What 'best' goes by: higher is better."""
        return -scores["valid_loss"] if self.config.metric == "loss" else scores[self.config.metric]

    def _snapshot(self) -> None:
        """Keep these weights for the average of the last few."""
        if self.config.average < 2:
            return
        weights = {name: p.detach() for name, p in self.model.named_parameters()}
        write_tensors(snapshot_path(self.folder, self.progress.step), weights, {})
        self.progress.snapshots.append(self.progress.step)
        del self.progress.snapshots[: -self.config.average]

    def save(self) -> None:
        """Write a checkpoint to resume from, and delete what it makes superfluous."""
        self.flush()
        self._check_weights()
        save_checkpoint(self.folder, self.model, self.optimizer, self.progress)
        tidy(self.folder)
        self._restart_clock()

    def keep_average(self) -> None:
        """Keep the mean of the last validations' weights, if it measures better than the best."""
        progress = self.progress
        if len(progress.snapshots) < 2:
            return
        weights = averaged([snapshot_path(self.folder, step) for step in progress.snapshots])
        load_weights(self.model, weights, self.folder)
        value = self._value(self.evaluate())
        better = progress.best is None or value > progress.best
        if better:
            progress.best = value
            self.keep()
        self.say(
            f"the average of the last {len(progress.snapshots)} validations "
            f"{'is better than the best of them and was kept' if better else 'is no better'}"
        )

    def say(self, sentence: str) -> None:
        """Tell whoever listens."""
        for reporter in self.reporters:
            reporter.say(sentence)
