"""Progress of a run: a JSONL log, TensorBoard curves, and a display for people."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from qkv.config import TrainConfig
from qkv.files import write_text
from qkv.training.checkpoint import TrainState

Record = Mapping[str, Any]  # step, loss, lr, tokens_per_second; valid_loss and scores at times
PLAIN_LINES = 20  # lines over a whole run where there is no terminal, and more if it is slow
PLAIN_SECONDS = 10.0  # most seconds between them
BAR_WIDTH = 10  # leaves room for step, time left and loss in 80 columns
SCORES = {
    "valid_loss": "valid",
    "bleu": "BLEU",
    "exact_match": "exact",
    "accuracy": "accuracy",
    "f1": "F1",
    "correlation": "correlation",
    "pair_accuracy": "pairs",
}


class Reporter(Protocol):
    """Receives the records of a run's steps, and remarks."""

    def record(self, records: Sequence[Record]) -> None:
        """Report the steps since the last call."""

    def say(self, sentence: str) -> None:
        """Report a remark or a warning, for which logs of numbers have no use."""
        return

    def close(self) -> None:
        """Finish; nothing more will come."""


class JsonLog(Reporter):
    """`log.jsonl`: one JSON object for each step, one a line."""

    def __init__(self, path: Path, from_step: int) -> None:
        """Open the log; drop lines after the checkpoint that the run resumes from."""
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        write_text(path, "".join(f"{line}\n" for line in lines if _step_of(line) <= from_step))
        self.file = path.open("a", encoding="utf-8")

    def record(self, records: Sequence[Record]) -> None:
        """Append a line for each step and flush them to the file."""
        self.file.write("".join(json.dumps(dict(record)) + "\n" for record in records))
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # a line that a kill cut short


class Curves(Reporter):
    """TensorBoard event files, where tensorboard is installed."""

    def __init__(self, folder: Path, from_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=from_step + 1)

    def record(self, records: Sequence[Record]) -> None:
        """Add a point for each step to the curve of each number."""
        for record in records:
            for name, value in record.items():
                if name != "step":
                    self.writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Write buffered points."""
        self.writer.close()


class Display:
    """Shows step, time left, loss, learning rate, speed and scores to people.

    On a terminal it is a live bar that fits its width; elsewhere a line now and then.
    """

    def __init__(
        self,
        console: Console,
        config: TrainConfig,
        state: TrainState,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.console, self.steps, self.clock = console, config.steps, clock
        self.first_step = self.step = state.step
        self.started = self.stepped = self.printed = clock()
        self.deadline = self.started + config.seconds - state.seconds if config.seconds else None
        self.scores: list[str] = []
        self.bar: Progress | None = None
        if console.is_terminal:
            self.bar = Progress(
                BarColumn(bar_width=BAR_WIDTH),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                _TimeLeft(self),
                TextColumn("{task.description}"),
                console=console,
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=self.steps, completed=self.step)

    def time_left(self) -> str:
        """Estimate the time until the steps or the seconds are used up, whichever comes first."""
        now = self.clock()
        limits = [] if self.deadline is None else [self.deadline - now]
        if self.step > self.first_step:
            pace = (self.stepped - self.started) / (self.step - self.first_step)
            limits.append(self.stepped + pace * (self.steps - self.step) - now)
        return f"{timedelta(seconds=max(0, round(min(limits))))} left" if limits else "-:--:-- left"

    def record(self, records: Sequence[Record]) -> None:
        """Show the steps since the last call; without a terminal, only some of them."""
        self.step, self.stepped = records[-1]["step"], self.clock()
        quiet = self.stepped - self.printed >= PLAIN_SECONDS
        for record in records:
            step, validated = record["step"], "valid_loss" in record
            figures = [
                f"loss {record['loss']:.3f}",
                f"lr {record['lr']:.1e}",
                f"{record['tokens_per_second']:,.0f} tok/s",
            ]
            if validated:
                self.scores = describe_scores(record)
            due = step % max(1, self.steps // PLAIN_LINES) == 0 or (quiet and step == self.step)
            if validated or (due and not self.bar):
                left = [] if self.bar else [self.time_left()]
                scores = self.scores if validated else []
                self._print("  ".join([f"step {step}/{self.steps}", *figures, *left, *scores]))
        if self.bar:
            taken = BAR_WIDTH + len(f" {self.step}/{self.steps} {self.time_left()} ")
            shown = _fitting([*figures, *self.scores], self.console.width - taken)
            self.bar.update(self.task, completed=self.step, description=shown)

    def say(self, sentence: str) -> None:
        """Print a remark above the bar."""
        self._print(f"[yellow]·[/yellow] {escape(sentence)}")

    def _print(self, text: str) -> None:
        self.printed = self.clock()
        self.console.print(text, highlight=False, soft_wrap=True)  # one line stays one in a file

    def close(self) -> None:
        """Leave the last state of the bar on the screen."""
        if self.bar:
            self.bar.stop()


class _TimeLeft(ProgressColumn):
    """The time left, counting down between steps."""

    def __init__(self, display: Display) -> None:
        super().__init__()
        self.display = display

    def render(self, task: Task) -> Text:
        return Text(self.display.time_left())


def _fitting(parts: Iterable[str], width: int) -> str:
    """Join as many parts as fit, the first ones first."""
    line = ""
    for part in parts:
        longer = f"{line}  {part}" if line else part
        if len(longer) > width:
            break
        line = longer
    return line


def describe_scores(record: Record) -> list[str]:
    """Format a validation's scores for people."""
    return [
        f"{label} {record[name]:.{3 if name == 'valid_loss' else 1}f}"
        for name, label in SCORES.items()
        if name in record
    ]
