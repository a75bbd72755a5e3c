"""The training loop: step, validate, keep, until done; exact when it is killed and resumed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from qkv.config import TrainConfig
from qkv.data import Batch, BatchStream, prefetch
from qkv.errors import UserError
from qkv.model import EncoderDecoder
from qkv.train.checkpoint import (
    Progress,
    averaged,
    keep_newest,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from qkv.train.log import Reporter
from qkv.train.optimizer import build_optimizer, set_learning_rate
from qkv.train.schedule import learning_rate
from qkv.train.step import LossSum, accumulate, update
from qkv.train.validate import complaint
from qkv.weights import load_weights, write_tensors

Scores = dict[str, float]
LOG_EVERY = 10  # steps between looks at the losses; on a GPU each look waits for it


@dataclass
class Trainer:
    """Everything a run works with. What it remembers from step to step is `progress`."""

    model: EncoderDecoder
    stream: BatchStream
    loss_sum: LossSum
    config: TrainConfig
    device: torch.device
    folder: Path  # for checkpoints
    evaluate: Callable[[], Scores]  # measures; has at least valid_loss and wrong_source_loss
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
        path = newest_checkpoint(self.folder)
        if path is None:
            return False
        self.progress = load_checkpoint(path, self.model, self.optimizer)
        return True

    def run(self) -> Progress:
        """Train until the steps, the time or the patience are used up."""
        self.model.train()
        self.clock = time.perf_counter()
        steps = self._batches()
        while not self.finished():
            self.take_step(next(steps))
            if self._due(self.config.valid_every):
                self.validate()
            elif self._due(LOG_EVERY):
                self.flush()
            if self._due(self.config.checkpoint_every):
                self.save()
        steps.close()
        if not self._due(self.config.valid_every):
            self.validate()
        self.save()
        self.keep_average()
        return self.progress

    def _batches(self) -> Generator[list[Batch]]:
        def to_device(batches: list[Batch]) -> list[Batch]:
            return [batch.to(self.device) for batch in batches]

        return prefetch(self.stream.steps_from(self.progress.step), to_device)

    def _due(self, every: int) -> bool:
        """Whether something that happens every so many steps happens now, or at the end."""
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
        self.tokens += sum(batch.n_labels for batch in batches)
        self.pending.append({"step": step, "loss": loss, "lr": rate})

    def _elapsed(self) -> float:
        return time.perf_counter() - self.clock

    def flush(self, scores: Scores | None = None) -> None:
        """Look at the losses since the last look, check them and report them."""
        losses = [float(record["loss"]) for record in self.pending]  # waits for the GPU
        elapsed = self._elapsed()
        rate = round(self.tokens / elapsed, 1) if elapsed > 0 else 0.0
        for record, loss in zip(self.pending, losses, strict=True):
            self._check_finite(record, loss)
            record |= {"loss": loss, "tokens_per_second": rate}
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

    def _check_finite(self, record: dict[str, Any], loss: float) -> None:
        if not math.isfinite(loss):
            raise UserError(
                f"Training stopped: the loss became {loss} at step {record['step']} (learning rate "
                f"{record['lr']:.2g}); lower train.lr or train.clip, or use more train.warmup. "
                f"The checkpoints in {self.folder} are from before that."
            )

    def validate(self) -> None:
        """Measure, remember whether it was the best, and keep the weights to average."""
        progress = self.progress
        step = progress.step
        self._look_at_losses_first()
        scores = self.evaluate()
        self._complain(scores)
        value = self._value(scores)
        if progress.best is None or value > progress.best:
            progress.best, progress.best_step, progress.stale = value, step, 0
            self.keep()
        else:
            progress.stale += 1
        self._snapshot()
        self.flush(scores)

    def _look_at_losses_first(self) -> None:
        """A model whose loss is not a number is neither measured nor kept."""
        for record in self.pending:
            self._check_finite(record, float(record["loss"]))

    def _complain(self, scores: Scores) -> None:
        """Say so when a run that has warmed up has learnt nothing."""
        if self.progress.step < 2 * self.config.warmup:
            return
        sentence = complaint(
            scores["valid_loss"], scores["wrong_source_loss"], self.frequencies_loss
        )
        if sentence:
            self.say(f"warning: {sentence}")

    def _value(self, scores: Scores) -> float:
        """What 'best' goes by: higher is better."""
        return -scores["valid_loss"] if self.config.metric == "loss" else scores["bleu"]

    def _snapshot(self) -> None:
        """Keep these weights for the average of the last few."""
        if self.config.average < 2:
            return
        weights = {name: p.detach() for name, p in self.model.named_parameters()}
        write_tensors(self._snapshot_path(self.progress.step), weights, {})
        self.progress.snapshots.append(self.progress.step)
        del self.progress.snapshots[: -self.config.average]

    def _snapshot_path(self, step: int) -> Path:
        return self.folder / f"weights-{step:08d}.safetensors"

    def save(self) -> None:
        """Write a checkpoint to resume from; keep the one before it in case this one is cut."""
        self.flush()
        save_checkpoint(self.folder, self.model, self.optimizer, self.progress)
        keep_newest(self.folder, "step-*.safetensors", 2)
        # Those of the checkpoint before must stay until this one is known to be whole.
        keep_newest(self.folder, "weights-*.safetensors", 2 * self.config.average)

    def keep_average(self) -> None:
        """Keep the mean of the last validations' weights, if it measures better than the best."""
        progress = self.progress
        if len(progress.snapshots) < 2:
            return
        weights = averaged([self._snapshot_path(step) for step in progress.snapshots])
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
