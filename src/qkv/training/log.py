"""What a run tells as it goes: a JSONL log, TensorBoard curves, and a display for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from qkv.files import write_text

Record = Mapping[str, Any]  # step, loss, lr, tokens_per_second; valid_loss and scores at times


class Reporter(Protocol):
    """Somebody who is told of each step and of anything worth a sentence."""

    def record(self, record: Record) -> None:
        """Take note of one step."""

    def say(self, sentence: str) -> None:
        """Pass on a remark or a warning."""

    def close(self) -> None:
        """Finish; nothing more will come."""


class JsonLog:
    """`log.jsonl`: one object a line, one line a step."""

    def __init__(self, path: Path, from_step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._forget_after(path, from_step)
        self.file = path.open("a", encoding="utf-8")

    @staticmethod
    def _forget_after(path: Path, step: int) -> None:
        """Drop what was logged past the checkpoint that the run goes on from."""
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        write_text(path, "".join(f"{line}\n" for line in lines if _step_of(line) <= step))

    def record(self, record: Record) -> None:
        """Append a line and let it reach the file at once."""
        self.file.write(json.dumps(dict(record)) + "\n")
        self.file.flush()

    def say(self, sentence: str) -> None:
        """Remarks are for people; the log holds numbers."""

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # a line that a kill cut short


class Curves:
    """TensorBoard event files, where tensorboard is installed."""

    def __init__(self, folder: Path, from_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=from_step + 1)

    def record(self, record: Record) -> None:
        """Add one point to the curve of each number."""
        for name, value in record.items():
            if name != "step":
                self.writer.add_scalar(name, value, record["step"])

    def say(self, sentence: str) -> None:
        """Curves hold numbers."""

    def close(self) -> None:
        """Write out what is buffered."""
        self.writer.close()


def tensorboard_installed() -> bool:
    """Whether curves can be written."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        return False
    return True
