"""Training curves from the logs of runs, one over the other to compare."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.errors import UserError
from qkv.inspect.fonts import drawable
from qkv.inspect.style import COLOURS, MARKERS, Numbers, caption, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = dict[str, Any]  # step, loss, lr, tokens_per_second; valid_loss and scores at times
POINTS = 400  # of a curve; a longer log is drawn as the means of so many stretches
NAMES = {
    "loss": "loss (nats)",
    "lr": "learning rate",
    "tokens_per_second": "tokens per second",
}


def read_log(path: Path) -> list[Record]:
    """The records of a run's log (its folder, or the file); a last line cut short is left out."""
    file = path / "log.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"{file} is not there; training curves come from the log.jsonl that `qkv train` "
            "writes into its run folder, so give such a folder."
        )
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        record = _record(line)
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


def _record(line: str) -> Record | None:
    try:
        found = json.loads(line)
        return found if isinstance(found, dict) and math.isfinite(found["step"]) else None
    except (ValueError, KeyError, TypeError):
        return None


def read_logs(paths: Sequence[Path]) -> dict[str, list[Record]]:
    """The logs of several runs by short names: the folders', or longer ones where these agree."""
    folders = [path if path.is_dir() else path.parent for path in paths]
    short = [folder.resolve().name for folder in folders]
    names = [
        name if short.count(name) == 1 else str(folder)
        for name, folder in zip(short, folders, strict=True)
    ]
    return {name: read_log(path) for name, path in zip(names, paths, strict=True)}


def draw_curves(
    runs: Mapping[str, Sequence[Record]], title: str = "", *, viewer_fonts: bool = False
) -> Figure:
    """Loss, learning rate, speed and each score over the steps, a colour and marker a run."""
    keys = _keys(runs)
    across = min(3, len(keys))
    down = math.ceil(len(keys) / across)
    drawn, note = drawable([*runs, title or _finding(runs)], viewer_fonts)
    *names, title = drawn
    with styled():
        figure, grid = new_figure(
            3.4 * across + 0.6, 2.6 * down + 0.7, nrows=down, ncols=across, squeeze=False
        )
        for axes, key in zip(grid.flat, keys, strict=False):
            for place, (name, records) in enumerate(zip(names, runs.values(), strict=True)):
                _curve(axes, key, records, name, place)
            _frame(axes, key)
        for axes in grid.flat[len(keys) :]:
            axes.set_visible(False)
        if len(names) > 1:
            _legend_of_runs(figure, names)
        caption(figure, title, note)
    return figure


def _keys(runs: Mapping[str, Sequence[Record]]) -> list[str]:
    """What has a panel: the usual three, then the scores in the order in which they appear."""
    found = dict.fromkeys(
        key
        for records in runs.values()
        for record in records
        for key, value in record.items()
        if isinstance(value, int | float)
    )
    return [*NAMES, *(key for key in found if key not in (*NAMES, "step", "valid_loss"))]


def series(records: Sequence[Record], key: str) -> tuple[Numbers, Numbers]:
    """Steps and values where a key was logged, thinned to means where there are very many."""
    pairs = [(r["step"], r[key]) for r in records if isinstance(r.get(key), int | float)]
    steps, values = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    if len(steps) <= POINTS:
        return steps, values
    parts = np.array_split(np.arange(len(steps)), POINTS)
    return (
        np.array([steps[part].mean() for part in parts]),
        np.array([values[part].mean() for part in parts]),
    )


def _curve(axes: Axes, key: str, records: Sequence[Record], name: str, place: int) -> None:
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    steps, values = series(records, key)
    if key in NAMES:
        light: dict[str, Any] = {"alpha": 0.55, "linewidth": 1.0} if key == "loss" else {}
        axes.plot(steps, values, color=colour, label=f"{name} (training)", **light)
    else:
        axes.plot(steps, values, color=colour, marker=marker, label=name)
    if key == "loss":
        steps, values = series(records, "valid_loss")
        axes.plot(steps, values, color=colour, marker=marker, label=f"{name} (held-out)")


def _frame(axes: Axes, key: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel="step", ylabel=NAMES.get(key, key.replace("_", " ")))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if key == "loss":
        _frame_losses(axes)
    elif key in NAMES:
        axes.set_ylim(bottom=0)


def _frame_losses(axes: Axes) -> None:
    from matplotlib.lines import Line2D

    lines = [np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.lines]
    values = np.concatenate(lines)
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() > 30 * values.min():
        axes.set_yscale("log")
    kinds = [
        Line2D([], [], color="#555555", alpha=0.55, linewidth=1.0, label="training"),
        Line2D([], [], color="#555555", marker="o", label="held-out"),
    ]
    held_out = any(len(line) for line in lines[1::2])
    axes.legend(handles=kinds if held_out else kinds[:1])


def _legend_of_runs(figure: Figure, names: list[str]) -> None:
    from matplotlib.lines import Line2D

    lines = [
        Line2D(
            [], [], color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)], label=name
        )
        for i, name in enumerate(names)
    ]
    figure.legend(handles=lines, loc="outside lower center", ncols=min(4, len(names)))


def _finding(runs: Mapping[str, Sequence[Record]]) -> str:
    """What the curves show first: whose held-out loss is lowest, and when."""
    best = [
        (record["valid_loss"], record["step"], name)
        for name, records in runs.items()
        for record in records
        if isinstance(record.get("valid_loss"), int | float) and math.isfinite(record["valid_loss"])
    ]
    if not best:
        return "Training curves"
    loss, step, name = min(best)
    whose = f"{name}: lowest" if len(runs) > 1 else "Lowest"
    return f"{whose} held-out loss {loss:.3g} at step {step:,}"
