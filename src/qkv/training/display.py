"""Progress for people: a live bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from datetime import timedelta

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from qkv.training.log import Record

PLAIN_LINES = 20  # lines over a whole run where there is no terminal


class Display:
    """Loss, learning rate, tokens a second, time left and the last validation's scores."""

    def __init__(self, console: Console, steps: int, from_step: int = 0) -> None:
        self.console, self.steps = console, steps
        self.from_step, self.clock = from_step, time.perf_counter()
        self.scores = ""
        self.bar: Progress | None = None
        if console.is_terminal:
            self.bar = Progress(
                BarColumn(bar_width=24),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=console,
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=steps, completed=from_step)

    def record(self, record: Record) -> None:
        """Show one step."""
        line = (
            f"loss {record['loss']:.3f}  lr {record['lr']:.1e}  "
            f"{record['tokens_per_second']:,.0f} tok/s"
        )
        measured = "valid_loss" in record
        if measured:
            self.scores = describe_scores(record)
        if self.bar:
            shown = f"{line}  {self.scores}"
            self.bar.update(self.task, completed=record["step"], description=shown)
        if measured or (not self.bar and record["step"] % max(1, self.steps // PLAIN_LINES) == 0):
            scores = f"  {self.scores}" if measured else ""
            left = "" if self.bar else f"  {self._time_left(record['step'])} left"
            self._print(f"step {record['step']}/{self.steps}  {line}{left}{scores}")

    def _time_left(self, step: int) -> str:
        """What the steps to come will take, at the pace so far."""
        pace = (time.perf_counter() - self.clock) / max(1, step - self.from_step)
        return str(timedelta(seconds=round(pace * (self.steps - step))))

    def say(self, sentence: str) -> None:
        """Print a remark above the bar."""
        self._print(f"[yellow]·[/yellow] {escape(sentence)}")

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)  # one line stays one in a file

    def close(self) -> None:
        """Leave the last state of the bar on the screen."""
        if self.bar:
            self.bar.stop()


def describe_scores(record: Record) -> str:
    """The validation's figures as people read them."""
    names = {
        "valid_loss": "valid",
        "bleu": "BLEU",
        "exact_match": "exact",
        "accuracy": "accuracy",
        "f1": "F1",
        "correlation": "correlation",
        "pair_accuracy": "pairs",
    }
    shown = [
        f"{label} {record[name]:.3f}" if name == "valid_loss" else f"{label} {record[name]:.1f}"
        for name, label in names.items()
        if name in record
    ]
    return "  ".join(shown)
