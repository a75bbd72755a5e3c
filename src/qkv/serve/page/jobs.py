"""Work that the page starts: a training run or a lab, each in a process of its own."""

from __future__ import annotations

import atexit
import contextlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkv import shelf
from qkv.errors import UserError
from qkv.inspect.draw.language import Language
from qkv.inspect.trace.trace import Trace
from qkv.serve.page.actions import act, actions, examples
from qkv.tasks import load

DEMO = "demo"  # the run that the page starts, and its recipe
MAX_RECORDS = 4000  # of a log in one response
RECIPES = Path(__file__).parents[2] / "recipes"


class Jobs:
    """One process at a time, started from the page; it is stopped when the server ends."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or shelf.home() / "page"
        self._lock = threading.Lock()
        self._name = ""
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)

    def running(self) -> str:
        """Name of what is running, or ""."""
        process = self._process
        return self._name if process is not None and process.poll() is None else ""

    def start(self, name: str, arguments: Sequence[str], anew: Path | None = None) -> None:
        """Start `qkv` with these arguments; its output goes to a file beside its results.

        The folder `anew`, of an earlier job, is removed before.
        """
        with self._lock:
            if busy := self.running():
                raise UserError(f"{busy} is still running; wait until it ends, or stop it.")
            if anew is not None:
                shutil.rmtree(anew, ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._output(name).open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "qkv", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                )
            self._name = name

    def stop(self) -> None:
        """Stop what is running, giving it time to keep its work."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        if process.poll() is None:
            process.kill()

    def failure(self, name: str) -> str:
        """The last line that a job printed, if it failed."""
        process = self._process
        if name != self._name or process is None or process.poll() in (None, 0):
            return ""
        lines = self.printed(name).strip().splitlines()
        return lines[-1] if lines else f"{name} ended with code {process.returncode}."

    def printed(self, name: str) -> str:
        """What a job has printed."""
        path = self._output(name)
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def _output(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '-')}.txt"

    def start_demo(self) -> None:
        """Train the packaged recipe anew."""
        recipe, folder = RECIPES / "demo.toml", self.folder / DEMO
        often = ["--set", "train.valid_every=100"]  # to see samples improve
        self.start("runs/demo", ["train", str(recipe), "--out", str(folder), *often], folder)

    def start_lab(self, name: str, language: str) -> None:
        """Run a lab; its figure and its numbers go to the page's folder."""
        lab_figure(self, name)  # refuses what is no lab
        out = self.folder / "labs"
        self.start(f"labs/{name}", ["lab", name, "--out", str(out), "--language", language])


class Runs:
    """Run folders that can be watched: served ones that have a log, and the page's own."""

    def __init__(self, given: dict[str, Path], jobs: Jobs) -> None:
        self._given = {name: path for name, path in given.items() if (path / "log.jsonl").is_file()}
        self.jobs = jobs
        self._loaded: tuple[Path, float, Any] | None = None
        self._lock = threading.Lock()

    def folder(self, name: str) -> Path:
        """The folder of a run by its name."""
        if name in self._given:
            return self._given[name]
        if name == DEMO:
            return self.jobs.folder / DEMO
        raise UserError(f"There is no run {name!r}; there are {', '.join(self.names())}.")

    def names(self) -> list[str]:
        """Names of all runs, those that were given first."""
        return [*self._given, *({DEMO} - self._given.keys())]

    def log(self, name: str, after: int) -> dict[str, Any]:
        """Records of a run's log behind the first `after` lines."""
        path = self.folder(name) / "log.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        new = lines[after : after + MAX_RECORDS]
        records = []
        for line in new:
            try:
                records.append(json.loads(line))
            except ValueError:  # its end is not written yet
                break
        running = name == DEMO and self.jobs.running() == "runs/demo"
        failure = self.jobs.failure("runs/demo") if name == DEMO else ""
        return {
            "records": records,
            "next": after + len(records),
            "running": running,
            "failure": failure,
        }

    def sample(self, name: str, text: str) -> dict[str, Any]:
        """What the run's best weights so far make of a text: output, attention, gradients.

        Without a text, an example that suits the task is taken.
        """
        folder = self.folder(name)
        weights = folder / "model.safetensors"
        if not weights.is_file():
            return {"text": "", "time": 0, "asked": text}
        with self._lock:
            task = self._task(folder, weights.stat().st_mtime)
        return {"time": weights.stat().st_mtime, **sample_of(task, text)}

    def _task(self, folder: Path, changed: float) -> Any:
        if self._loaded is None or self._loaded[:2] != (folder, changed):
            self._loaded = (folder, changed, load(str(folder), "cpu", "fp32"))
        return self._loaded[2]


def sample_of(task: Any, text: str = "") -> dict[str, Any]:
    """What a model makes of a text, or of an example: output, attention, gradients."""
    action = actions(task)[0]
    text = text.strip() or examples(task)[action][0][0]
    done = act(task, action, text)
    key = done.trace.names("*_attention.weights")[-1]
    rows, columns = done.trace.labels(key)[2:]
    return {
        "asked": text,
        "text": done.text,
        "rows": rows,
        "columns": columns,
        "attention": done.trace[key][0].mean(0).tolist(),
        "gradients": gradient_norms(done.trace),
    }


def gradient_norms(trace: Trace) -> list[dict[str, Any]]:
    """The norm of the loss' gradient in each layer's weights; none without labels of tokens."""
    if trace.inputs.labels is None or trace.inputs.output_kind != "tokens":
        return []
    of_pass = set(trace.names("*"))  # what is left are the weights
    keys = [f"gradient.{key}" for key in trace.names() if key not in of_pass]
    squares: dict[str, float] = {}
    for key, gradient in trace.peek(keys).items():
        first, second, *_ = [*key.removeprefix("gradient.").split("."), ""]
        layer = f"{first}.{second}" if second.isdigit() else first
        squares[layer] = squares.get(layer, 0.0) + float(gradient.double().square().sum())
    return [{"name": name, "norm": total**0.5} for name, total in squares.items()]


def lab_list(jobs: Jobs, language: Language) -> list[dict[str, Any]]:
    """All labs: title, claim, what they need, and their last result here."""
    from qkv_labs import all_labs

    return [
        {
            "name": lab.name,
            "number": lab.number,
            "title": getattr(lab.title, language) or lab.title.en,
            "claim": getattr(lab.claim, language) or lab.claim.en,
            "needs": bool(lab.needs),
            **lab_state(jobs, lab.name),
        }
        for lab in all_labs()
    ]


def lab_state(jobs: Jobs, name: str) -> dict[str, Any]:
    """Whether a lab is running, has a figure, or failed."""
    return {
        "running": jobs.running() == f"labs/{name}",
        "figure": lab_figure(jobs, name).is_file(),
        "printed": jobs.printed(f"labs/{name}")[-8000:],
        "failure": jobs.failure(f"labs/{name}"),
    }


def lab_figure(jobs: Jobs, name: str, language: Language = "en") -> Path:
    """Path of a lab's figure; only names of labs are looked up."""
    from qkv_labs.catalogue import NAMES

    if name not in NAMES:
        raise UserError(f"There is no lab {name!r}.")
    paths = [jobs.folder / "labs" / f"{name}{of}.png" for of in ("", ".zh")]
    return paths[1] if language == "zh" and paths[1].is_file() else paths[0]
