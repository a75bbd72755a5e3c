"""The training loop: step, validate, save, until done; exact when it is killed and resumed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM
from typing import Any

import torch

from qkv.config import TrainConfig
from qkv.data import Stream, prefetch
from qkv.data.batch import Batch
from qkv.device import memory_errors
from qkv.errors import UserError
from qkv.model import Model
from qkv.training.background import BackgroundWrite
from qkv.training.checkpoint import (
    TrainState,
    averaged,
    delete_old,
    has_checkpoints,
    load_trained,
    newest_whole,
    save_snapshot,
    snapshot_path,
)
from qkv.training.interrupt import TrainingInterrupt, noted_signals
from qkv.training.layout import Layout
from qkv.training.optimizer import set_learning_rate
from qkv.training.progress import Reporter
from qkv.training.schedule import learning_rate
from qkv.training.validate import complaint

Scores = dict[str, float]
LOG_EVERY = 10  # steps between looks at the losses; on a GPU each look waits for it
LOG_SECONDS = 10.0  # where steps are slow, look after so long
MODELS = ("model.safetensors", "adapter_model.safetensors")
"""The best weights or updates of them, in the folder above the checkpoints."""


@dataclass
class Trainer:
    """Trains a model; what it remembers from step to step is in `state`.

    Each worker of a distributed run has a trainer: all take the same decisions at the same steps,
    and the main one alone reports and writes the model.
    """

    layout: Layout  # the model and its loss, on one worker or many
    stream: Stream
    config: TrainConfig
    device: torch.device
    folder: Path  # for checkpoints
    evaluate: Callable[[], Scores]  # measures valid_loss at least
    keep: Callable[[], None]  # saves the model as the best so far
    reporters: Sequence[Reporter]
    baseline: float  # loss of predicting token or label frequencies
    state: TrainState = field(default_factory=TrainState)

    def __post_init__(self) -> None:
        self.workers = self.layout.workers
        self.optimizer = self.layout.build_optimizer(self.config)
        self.pending: list[dict[str, Any]] = []  # steps whose loss is still on the device
        self.unsaved = False  # whether `state` has changed since the last checkpoint
        self.writing = BackgroundWrite()  # the newest checkpoint
        self.tokens, self.clock = 0, time.perf_counter()

    @property
    def model(self) -> Model:
        """The whole model, which is evaluated and kept."""
        return self.layout.model

    def resume(self, say: Callable[[str], None] | None = None) -> bool:
        """Load the newest readable checkpoint; return False where training never got that far.

        Says which checkpoints cannot be read. Raises UserError where none can, or where there is a
        trained model without any, because starting over would replace it.
        """
        say = say or self.say
        path, has_model = self.workers.from_main(lambda: self._newest_checkpoint(say))
        if path is None:
            return False
        self.state = self.layout.load(path, self.optimizer)
        say(f"resuming from step {self.state.step}")
        if self.state.best_step == self.state.step and not has_model:
            self.keep_weights()  # killed between the first checkpoint and the first model
        return True

    def _newest_checkpoint(self, say: Callable[[str], None]) -> tuple[Path | None, bool]:
        """Find the checkpoint to resume from, and whether there is a model."""
        newest, unreadable = newest_whole(self.folder)
        run = self.folder.parent
        has_model = any((run / name).exists() for name in MODELS)
        if newest is None and unreadable:
            path, error = max(unreadable.items())
            raise UserError(
                f"No checkpoint in {self.folder} can be read, {path.name} because: {error} "
                f"Without one the run cannot be resumed; train again in another folder."
            )
        if newest is None and has_model:
            raise UserError(
                f"{run} has a trained model but no checkpoint in {self.folder.name}/ "
                f"to resume from; restore the checkpoints, or train again in another folder."
            )
        for path, error in sorted(unreadable.items(), reverse=True):
            if newest is not None and path.stem > newest.stem:
                say(f"warning: passed over {path.name}: {error}")
        return newest, has_model

    def run(self) -> TrainState:
        """Train until the steps, the time or the patience are used up.

        In the main thread, SIGINT and SIGTERM raise TrainingInterrupt, a KeyboardInterrupt, once
        the step is finished and its checkpoint written.
        """
        self.model.train()
        self.clock = time.perf_counter()
        advice = (
            f"lower train.batch_tokens ({self.config.batch_tokens}) and raise train.accumulate in "
            f"return, or lower data.max_length or the model's sizes"
        )
        with memory_errors(self.device, advice), self._written_checkpoints():
            self._loop()
            self.keep_average()
        return self.state

    @contextmanager
    def _written_checkpoints(self) -> Iterator[None]:
        """Leave no checkpoint half written, whatever ends the block."""
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the first error is the one to tell
                self.writing.wait()
            raise
        self.writing.wait()

    def _loop(self) -> None:
        config, state = self.config, self.state
        several = self.workers.size > 1
        with noted_signals(self.say, several) as signals, closing(self._batches()) as steps:
            while True:
                done, slow = self.workers.reduce_any(
                    self.finished(), self._elapsed() >= LOG_SECONDS
                )
                if (done or self._due(config.valid_every)) and state.validated < state.step:
                    self.validate()
                elif self._due(LOG_EVERY) or slow:
                    self.flush()
                done, stopped = self.workers.reduce_any(done or self.finished(), bool(signals))
                if self.unsaved and (done or stopped or self._due(config.checkpoint_every)):
                    self.save()
                if stopped or done:
                    self.writing.wait()
                if stopped:
                    raise TrainingInterrupt(signals[0] if signals else SIGTERM, state.step)
                if done:
                    return
                self.take_step(next(steps))

    def _batches(self) -> Generator[list[Batch]]:
        def to_device(batches: list[Batch]) -> list[Batch]:
            return [batch.to(self.device) for batch in batches]

        return prefetch(self.stream.steps_from(self.state.step), to_device)

    def _due(self, every: int) -> bool:
        return self.state.step % every == 0

    def finished(self) -> bool:
        """Whether the run's steps, seconds or patience are used up."""
        config, state = self.config, self.state
        out_of_time = config.seconds and state.seconds + self._elapsed() >= config.seconds
        out_of_patience = config.patience and state.stale >= config.patience
        return bool(state.step >= config.steps or out_of_time or out_of_patience)

    def take_step(self, batches: list[Batch]) -> None:
        """Update the weights once; dropout is a pure function of the seed and the step."""
        self.state.step += 1
        self.unsaved = True
        step, config = self.state.step, self.config
        # Workers with different data drop different units.
        torch.manual_seed(config.seed * 1_000_003 + step + self.workers.data_rank * 2**32)
        rate = learning_rate(step, config, self.model.config.d_model)
        set_learning_rate(self.optimizer, rate)
        loss = self.layout.accumulate(batches, config.label_smoothing)
        self.layout.update(self.optimizer, config.clip)
        self.tokens += sum(batch.n_tokens for batch in batches)
        self.pending.append({"step": step, "loss": loss, "lr": rate})

    def _elapsed(self) -> float:
        return time.perf_counter() - self.clock

    def settle(self) -> None:
        """Read the pending losses from the device; raise UserError at one that is not finite."""
        fresh = [record for record in self.pending if "tokens_per_second" not in record]
        if not fresh:
            return
        losses = self.workers.reduce_shares(torch.stack([record["loss"] for record in fresh]))
        found = losses.tolist()  # waits for the GPU
        n_tokens, elapsed = self.workers.reduce_labels(self.tokens), self._elapsed()
        rate = round(n_tokens / elapsed, 1) if elapsed > 0 else 0.0
        for record, loss in zip(fresh, found, strict=True):
            self._check_finite("loss", loss, record["step"])
            record |= {"loss": loss, "tokens_per_second": rate}

    def flush(self, scores: Scores | None = None) -> None:
        """Report all pending steps, the last one with `scores`."""
        self.settle()
        self.writing.poll()
        if scores and self.pending:
            self.pending[-1] |= scores
        for reporter in self.reporters if self.pending else ():
            reporter.record(self.pending)
        self.pending, self.tokens = [], 0
        self._restart_clock()

    def _restart_clock(self) -> None:
        self.state.seconds += self._elapsed()
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
        """Reject weights that are not finite: a loss can be finite and its gradient not."""
        self._check_finite("largest weight", self.layout.largest_weight(), self.state.step)

    def validate(self) -> None:
        """Measure the weights, report it, and keep them if they are the best so far."""
        state = self.state
        self.settle()
        self._check_weights()
        self.layout.collect()
        scores = self._measured()
        self._check_finite("validation loss", scores["valid_loss"], state.step)
        value = self._value(scores)
        better = state.best is None or value > state.best
        if better:
            state.best, state.best_step, state.stale = value, state.step, 0
        else:
            state.stale += 1
        state.validated, self.unsaved = state.step, True
        self._snapshot()
        self.flush(scores)
        self._complain(scores)
        if better:
            self.writing.wait()  # a checkpoint before there is a model: `resume` relies on it
            if not self.workers.from_main(lambda: has_checkpoints(self.folder)):
                self.save()
                self.writing.wait()
            self.keep_weights()

    def _measured(self) -> Scores:
        """Measure the model; the main worker's numbers decide for all."""
        scores = self.evaluate()
        return self.workers.from_main(lambda: scores)

    def keep_weights(self) -> None:
        """Save the model as the best so far."""
        self.layout.collect()
        if self.workers.is_main:
            self.keep()

    def _complain(self, scores: Scores) -> None:
        """Warn when a run that has warmed up has learnt nothing.

        Not where labels are scored: their loss may rise while they get better.
        """
        by_labels = self.config.metric in ("accuracy", "f1", "correlation")
        if by_labels or self.state.step < 2 * self.config.warmup:
            return
        sentence = complaint(scores["valid_loss"], self.baseline, scores.get("wrong_source_loss"))
        if sentence:
            self.say(f"warning: {sentence}")

    def _value(self, scores: Scores) -> float:
        """The score that decides which weights are best; higher is better."""
        return -scores["valid_loss"] if self.config.metric == "loss" else scores[self.config.metric]

    def _snapshot(self) -> None:
        """Store these weights for the average of the last few validations."""
        if self.config.average < 2:
            return
        if self.workers.is_main:
            save_snapshot(self.folder, self.model, self.state.step)
        self.state.snapshots.append(self.state.step)
        del self.state.snapshots[: -self.config.average]

    def save(self) -> None:
        """Begin to write a checkpoint to resume from, which will replace older ones.

        It is written while training goes on; `writing.wait()` waits for it.
        """
        self.flush()
        self._check_weights()
        self.writing.wait()
        step = self.state.step

        def done() -> None:
            if self.workers.is_main:
                delete_old(self.folder, step)

        self.writing.start(self.layout.copied(self.folder, self.optimizer, self.state), done)
        self.unsaved = False
        self._restart_clock()

    def keep_average(self) -> None:
        """Keep the mean of the last validations' weights, if it scores better than the best."""
        state = self.state
        if len(state.snapshots) < 2:
            return
        self.workers.barrier()  # the main worker has written them
        try:
            weights = averaged([snapshot_path(self.folder, step) for step in state.snapshots])
        except UserError as error:
            self.say(f"warning: the average was left out, the best weights are kept: {error}")
            return
        load_trained(self.model, weights, self.folder)
        value = self._value(self._measured())
        better = state.best is None or value > state.best
        if better:
            state.best = value
            if self.workers.is_main:
                self.keep()
        self.say(
            f"the average of the last {len(state.snapshots)} validations "
            f"{'is better than the best of them and was kept' if better else 'is no better'}"
        )

    def say(self, sentence: str) -> None:
        """Pass a remark on to all reporters."""
        for reporter in self.reporters:
            reporter.say(sentence)
