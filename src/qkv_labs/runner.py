"""Run a lab, and write its figures and numbers into a folder."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qkv.errors import UserError
from qkv_labs.lab import Lab, Settings, Table, Verdict


@dataclass(frozen=True)
class Report:
    """What a lab measured, the verdict that follows, and where and how it was run."""

    lab: Lab[Any]
    measured: Any
    tables: Sequence[Table]
    verdict: Verdict
    seconds: float
    full: bool
    seed: int
    date: str
    machine: str
    versions: dict[str, str]

    @property
    def command(self) -> str:
        """The command that runs it again."""
        full = " --full" if self.full else ""
        seed = f" --seed {self.seed}" if self.seed else ""
        return f"qkv lab {self.lab.name}{full}{seed}"

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report as plain values; infinity and NaN become null."""
        texts = ("title", "claim", "experiment")
        content = {
            "number": self.lab.number,
            "name": self.lab.name,
            **{name: dataclasses.asdict(getattr(self.lab, name)) for name in texts},
            "verdict": self.verdict.to_dict(),
            "measured": dataclasses.asdict(self.measured),
            "tables": [dataclasses.asdict(table) for table in self.tables],
            "animated": self.lab.animate is not None,
            "command": self.command,
            "seconds": round(self.seconds, 1),
            **{
                name: getattr(self, name)
                for name in ("full", "seed", "date", "machine", "versions")
            },
        }
        return _plain(content)


def can_run(lab: Lab[Any]) -> bool:
    """Return whether the model that a lab needs, if any, has been pulled."""
    from qkv.hub import find_model

    try:
        return lab.needs is None or find_model(lab.needs).exists()
    except UserError:
        return False


def run_lab(lab: Lab[Any], settings: Settings | None = None) -> Report:
    """Measure, and judge what was measured; global random numbers are restored after it."""
    settings = settings or Settings()
    if not can_run(lab):
        raise UserError(
            f"The lab {lab.name} needs the model {lab.needs}, which is not here; fetch it with "
            f"`qkv pull {lab.needs}`."
        )
    with _one_thread(settings.seed):
        began = time.perf_counter()
        measured = lab.measure(settings)
        seconds = time.perf_counter() - began
    return Report(
        lab,
        measured,
        lab.tables(measured),
        lab.judge(measured),
        seconds,
        settings.full,
        settings.seed,
        date.today().isoformat(),
        f"{platform.system()}, {platform.machine()} CPU, 1 thread",
        _versions(),
    )


def write(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write NAME.svg, .png, .zh.svg and .zh.png, NAME.gif if there is one, and last NAME.json."""
    from qkv.inspect.draw import styled

    lab = report.lab
    folder.mkdir(parents=True, exist_ok=True)
    with styled():
        paths = _write_figure(report, folder, "en") + _write_figure(report, folder, "zh")
        if lab.animate:
            paths.append(folder / f"{lab.name}.gif")
            with TemporaryDirectory(dir=folder, prefix=".") as scratch:
                lab.animate(report.measured, Path(scratch) / paths[-1].name)
                (Path(scratch) / paths[-1].name).replace(paths[-1])
    paths.append(folder / f"{lab.name}.json")
    write_text(paths[-1], _with_flat_lists(report.to_dict()))
    return tuple(paths)


def _write_figure(report: Report, folder: Path, language: str) -> list[Path]:
    """Draw a lab's figure in a language, with its verdict below."""
    from qkv.inspect.draw import save_figure
    from qkv_labs.figures import add_verdict, translate
    from qkv_labs.texts import Texts

    lab = report.lab
    figure = lab.draw(report.measured)
    if language == "zh":
        translate(figure, Texts(lab.name))
    add_verdict(figure, report.verdict, language)
    infix = ".zh" if language == "zh" else ""
    paths = [folder / f"{lab.name}{infix}{ending}" for ending in (".svg", ".png")]
    for path in paths:
        save_figure(figure, path)
    shrink_png(paths[-1])
    return paths


def shrink_png(path: Path) -> None:
    """Store a PNG with a palette of 256 colours: a third of the bytes, and a chart looks alike."""
    from PIL import Image

    with Image.open(path) as image:
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, or leave the old one untouched."""
    with TemporaryDirectory(dir=path.parent, prefix=".") as scratch:
        complete = Path(scratch) / path.name
        complete.write_text(text, encoding="utf-8")
        complete.replace(path)


@contextmanager
def _one_thread(seed: int) -> Iterator[None]:
    """Use a seed and one thread, so that sums are taken in one order, and restore both."""
    import torch

    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _versions() -> dict[str, str]:
    import torch

    import qkv

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "qkv": qkv.__version__,
    }


def _with_flat_lists(content: dict[str, Any]) -> str:
    """Write indented JSON, with each list of numbers on one line."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    flat = re.sub(
        r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda list_: f"[{' '.join(list_[1].split())}]", text
    )
    return f"{flat}\n"


def _plain(value: Any) -> Any:
    """Round numbers to six digits, and replace those that JSON cannot hold by null."""
    if isinstance(value, dict):
        return {name: _plain(content) for name, content in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
