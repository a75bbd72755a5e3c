"""Running a lab, and leaving its figures and numbers in a folder."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qkv.errors import UserError
from qkv.files import replacing, write_text
from qkv_labs.lab import Lab, Settings, Table, Verdict

FIGURES = (".svg", ".png")


@dataclass(frozen=True)
class Report:
    """What a lab measured, what follows from it, and where and how it was run."""

    lab: Lab[Any]
    measured: Any
    tables: tuple[Table, ...]
    verdict: Verdict
    seconds: float
    full: bool
    seed: int
    date: str
    machine: str
    versions: dict[str, str]

    @property
    def command(self) -> str:
        """What runs it again."""
        full = " --full" if self.full else ""
        seed = f" --seed {self.seed}" if self.seed else ""
        return f"qkv lab {self.lab.name}{full}{seed}"

    def to_dict(self) -> dict[str, Any]:
        """All that is known of the run, as plain values; a number that is none is null."""
        told = ("title", "claim", "experiment")
        found = {
            "number": self.lab.number,
            "name": self.lab.name,
            **{name: dataclasses.asdict(getattr(self.lab, name)) for name in told},
            "verdict": dataclasses.asdict(self.verdict),
            "measured": dataclasses.asdict(self.measured),
            "tables": [dataclasses.asdict(table) for table in self.tables],
            "animated": self.lab.animate is not None,
            "command": self.command,
            "seconds": round(self.seconds, 1),
            "full": self.full,
            "seed": self.seed,
            "date": self.date,
            "machine": self.machine,
            "versions": self.versions,
        }
        return _plain(found)


def can_run(lab: Lab[Any]) -> bool:
    """Whether the model that a lab needs, if any, is here."""
    from qkv.shelf import find_model

    try:
        return lab.needs is None or find_model(lab.needs).exists()
    except UserError:
        return False


def run_lab(lab: Lab[Any], settings: Settings | None = None) -> Report:
    """Measure, and judge what was measured."""
    settings = settings or Settings()
    if not can_run(lab):
        raise UserError(
            f"The lab {lab.name} needs the model {lab.needs}, which is not here; fetch it with "
            f"`qkv pull {lab.needs}`."
        )
    with _alone(settings.seed):
        began = time.perf_counter()
        measured = lab.measure(settings)
        seconds = time.perf_counter() - began
        machine = _machine()
    return Report(
        lab,
        measured,
        lab.tables(measured),
        lab.judge(measured),
        seconds,
        settings.full,
        settings.seed,
        date.today().isoformat(),
        machine,
        _versions(),
    )


def write(report: Report, folder: Path) -> tuple[Path, ...]:
    """Leave NAME.svg, NAME.png, NAME.gif where it moves, and at last NAME.json in a folder."""
    from qkv.inspect.draw import styled
    from qkv.inspect.draw.figure import save_figure

    lab, paths = report.lab, []
    with styled():
        figure = lab.draw(report.measured)
        for ending in FIGURES:
            paths.append(folder / f"{lab.name}{ending}")
            save_figure(figure, paths[-1])
        if lab.animate:
            paths.append(folder / f"{lab.name}.gif")
            _animate(lab.animate, report.measured, paths[-1])
    paths.append(folder / f"{lab.name}.json")
    write_text(paths[-1], _in_lines(report.to_dict()))
    return tuple(paths)


def _animate(animate: Callable[[Any, Path], Any], measured: Any, path: Path) -> None:
    """Whoever writes a GIF looks at its ending, so that it cannot be written beside at once."""
    with TemporaryDirectory() as scratch, replacing(path) as beside:
        animate(measured, Path(scratch) / path.name)
        shutil.copyfile(Path(scratch) / path.name, beside)


@contextmanager
def _alone(seed: int) -> Iterator[None]:
    """A seed and one thread, so that sums are taken in one order; afterwards all is as before."""
    import torch

    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _machine() -> str:
    import torch

    threads = torch.get_num_threads()
    plural = "" if threads == 1 else "s"
    return f"{platform.system()}, {platform.machine()} CPU, {threads} thread{plural}"


def _versions() -> dict[str, str]:
    import torch

    import qkv

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "qkv": qkv.__version__,
    }


def _in_lines(content: dict[str, Any]) -> str:
    """JSON for people, with a list of numbers on one line."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    joined = re.sub(r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda one: f"[{' '.join(one[1].split())}]", text)
    return f"{joined}\n"


def _plain(value: Any) -> Any:
    """JSON has no word for infinity or for what is no number; six digits are enough of others."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
