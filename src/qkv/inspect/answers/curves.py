"""Training curves from the logs of runs, several in one figure to compare."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from qkv.config import load_recipe
from qkv.errors import UserError
from qkv.inspect.answers.answer import Answer, Question, Record, View
from qkv.inspect.draw.language import localized
from qkv.inspect.draw.style import SOFT, Numbers, caption, legend, line_style, new_figure
from qkv.inspect.draw.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POINTS = 400  # of a curve; a longer log is drawn as the means of as many stretches
MAX_ROWS = 12  # of a run's log in a terminal
NAMES = {
    "loss": "loss (nats)",
    "lr": "learning rate",
    "tokens_per_second": "tokens per second",
}
SCORES = {
    "bleu": "BLEU",
    "exact_match": "exact match (%)",
    "wrong_source_loss": "loss with a wrong source",
    "accuracy": "accuracy",
    "f1": "F1",
    "correlation": "correlation",
    "preferred": "preferred",
}


@dataclass(frozen=True)
class Curves(Answer):
    """The logs of runs by name."""

    runs: Mapping[str, Sequence[Record]]
    smoothing: Mapping[str, float] = field(default_factory=dict)  # of labels, by run

    @property
    def about_losses(self) -> str:
        """A sentence where training and held-out loss are not the same measure; else nothing."""
        smoothed = {f"{x:g}" for x in self.smoothing.values() if x}
        if not smoothed:
            return ""
        about = (
            "The training loss is measured against smoothed labels (label_smoothing = {share}), "
            "the held-out loss against the labels themselves: compare each with itself."
        )
        return localized(about, share=" / ".join(sorted(smoothed)))

    def figure(self) -> Figure:
        """Draw loss, learning rate, speed and each score over the steps, a colour per run."""
        keys = self._keys()
        across = min(3, len(keys))
        down = math.ceil(len(keys) / across)
        figure, grid = new_figure(
            3.4 * across + 0.6, 2.6 * down + 0.7, nrows=down, ncols=across, squeeze=False
        )
        for axes, key in zip(grid.flat, keys, strict=False):
            for number, records in enumerate(self.runs.values()):
                _curve(axes, key, records, number)
            _frame(axes, key)
        for axes in grid.flat[len(keys) :]:
            axes.set_visible(False)
        if len(self.runs) > 1:
            handles = [_line(number, label=name) for number, name in enumerate(self.runs)]
            columns = min(4, len(handles))
            legend(figure, handles=handles, loc="outside lower center", ncols=columns)
        caption(figure, self._lowest(), self.about_losses)
        return figure

    def numbers(self) -> Any:
        """Return the records of each run."""
        return {name: list(records) for name, records in self.runs.items()}

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield some records of each run, those with a held-out loss if there are any."""
        for name, records in self.runs.items():
            yield Text(name, style="italic")
            chosen = [record for record in records if "valid_loss" in record] or list(records)
            every = max(1, -(-len(chosen) // MAX_ROWS))
            rows = chosen[::-1][::every][::-1]  # the last record, and others evenly before it
            keys = list(dict.fromkeys(key for row in rows for key in row))
            head = [key.replace("_", " ") for key in keys]
            cells = [[_number(row.get(key)) for key in keys] for row in rows]
            yield from Table(head, cells).text(width)
        if self.about_losses:
            yield Text(self.about_losses, style="dim")

    def _keys(self) -> list[str]:
        """Keys that have a panel: the usual three, then the scores in the order of the logs."""
        every = dict.fromkeys(
            key
            for records in self.runs.values()
            for record in records
            for key, value in record.items()
            if isinstance(value, int | float)
        )
        return [*NAMES, *(key for key in every if key not in (*NAMES, "step", "valid_loss"))]

    def _lowest(self) -> str:
        """The title: the lowest held-out loss."""
        losses = [
            (record["valid_loss"], record["step"], name)
            for name, records in self.runs.items()
            for record in records
            if isinstance(record.get("valid_loss"), int | float)
            and math.isfinite(record["valid_loss"])
        ]
        if not losses:
            return localized("Training curves")
        loss, step, name = min(losses)
        if len(self.runs) > 1:
            title = "{name}: lowest held-out loss {loss:.3g} at step {step:,}"
            return localized(title, name=name, loss=loss, step=step)
        return localized("Lowest held-out loss {loss:.3g} at step {step:,}", loss=loss, step=step)


def read_log(path: Path) -> list[Record]:
    """Read a run's log (its folder, or the file); a truncated last line is left out."""
    file = path / "log.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"{file} is not there; training curves come from the log.jsonl that `qkv train` "
            "writes into its run folder, so give such a folder."
        )
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        record = _parse(line)
        if record is not None:
            records.append(record)
        elif number < len(lines) and line.strip():
            raise UserError(
                f"{file}:{number} is not a JSON object with a step; a log has one a line, so "
                "take this line out or give the log of another run."
            )
    if not records:
        raise UserError(f"{file} has no steps yet; wait until the run has logged its first.")
    return records


def read_smoothing(path: Path) -> float:
    """Label smoothing of a run, from its recipe; 0 where there is none to read."""
    file = (path if path.is_dir() else path.parent) / "recipe.toml"
    try:
        return load_recipe(file).train.label_smoothing if file.is_file() else 0.0
    except UserError:  # curves need no recipe, and an old one may have settings that are gone
        return 0.0


def _parse(line: str) -> Record | None:
    try:
        record = json.loads(line)
        return record if isinstance(record, dict) and math.isfinite(record["step"]) else None
    except (ValueError, KeyError, TypeError):
        return None


def read_logs(paths: Sequence[Path]) -> dict[str, list[Record]]:
    """Read the logs of several runs by their names."""
    return {name: read_log(path) for name, path in zip(run_names(paths), paths, strict=True)}


def run_names(paths: Sequence[Path]) -> list[str]:
    """Name runs by their folders or, where these agree, by their paths."""
    folders = [path if path.is_dir() else path.parent for path in paths]
    short = [folder.resolve().name for folder in folders]
    return [
        name if short.count(name) == 1 else str(folder)
        for name, folder in zip(short, folders, strict=True)
    ]


def read_smoothings(paths: Sequence[Path]) -> dict[str, float]:
    """Label smoothing of several runs, by the names that `read_logs` gives them."""
    return dict(zip(run_names(paths), map(read_smoothing, paths), strict=True))


def _series(records: Sequence[Record], key: str) -> tuple[Numbers, Numbers]:
    """Steps and values where a key was logged; very many are averaged."""
    pairs = [(r["step"], r[key]) for r in records if isinstance(r.get(key), int | float)]
    points = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    if len(points) > MAX_POINTS:
        points = np.array([part.mean(axis=0) for part in np.array_split(points, MAX_POINTS)])
    return points[:, 0], points[:, 1]


def _curve(axes: Axes, key: str, records: Sequence[Record], number: int) -> None:
    style = line_style(number)
    if key in NAMES:
        light: dict[str, Any] = {"alpha": 0.55, "linewidth": 1.0} if key == "loss" else {}
        axes.plot(*_series(records, key), color=style["color"], **light)
    if key not in NAMES or key == "loss":
        held_out = _series(records, "valid_loss" if key == "loss" else key)
        axes.plot(*held_out, **style)


def _frame(axes: Axes, key: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(
        xlabel=localized("step"), ylabel=localized((NAMES | SCORES).get(key, key.replace("_", " ")))
    )
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if key == "loss":
        lines = [np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.lines]
        values = np.concatenate(lines)
        values = values[np.isfinite(values)]
        if len(values) and values.min() > 0 and values.max() > 30 * values.min():
            axes.set_yscale("log")
        grey: Any = {"color": SOFT}
        training: Any = {"marker": None, "alpha": 0.55, "linewidth": 1.0}
        handles = [_line(label=localized("training"), **training, **grey)]
        if any(map(len, lines[1::2])):
            handles.append(_line(label=localized("held-out"), **grey))
        axes.legend(handles=handles)
    elif key in NAMES:
        axes.set_ylim(bottom=0)


def _line(number: int = 0, **settings: Any) -> Any:
    """A line of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **(line_style(number) | settings))


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _lack(question: Question) -> str | None:
    if question.runs:
        return None
    return "There is no log.jsonl of a training run to draw; give the folder of a run."


VIEW = View(
    "Training curves",
    "Loss, learning rate, speed and scores over the steps of training.",
    lambda question: Curves(question.runs, question.smoothing),
    _lack,
    needs_text=False,
)
