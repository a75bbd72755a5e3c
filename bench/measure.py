"""What all benchmarks share: the clock, the machine, the product's training step, the records."""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch
from rich.console import Console
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

import qkv
from bench.ctranslate2_search import Elapsed
from bench.records import ROOT, Figure, Record, save
from qkv.config import Recipe, load_recipe
from qkv.errors import UserError
from qkv.plan.hardware import find_hardware
from qkv.run.job import Job
from qkv.run.train import Run, make_trainer, prepare
from qkv.training import Trainer

RECIPES = ROOT / "recipes"
REPEATS = {"cuda": 5, "cpu": 3}
PAUSE = 0.3  # seconds; threads of a library may spin for a fifth of a second after its last call
Work = Callable[[], object]


def product_job(recipe: Recipe, folder: Path) -> Job:
    """Read the recipe's data and build its model and stream, as `qkv train` does."""
    return prepare(recipe, folder, Console(quiet=True))


def product_trainer(recipe: Recipe, folder: Path) -> Trainer:
    """Return the trainer that `qkv train` would run for a recipe, ready to take steps."""
    trainer = make_trainer(product_job(recipe, folder))
    trainer.model.train()
    return trainer


def trained(recipe: str, settings: Sequence[str], folder: Path) -> Run:
    """Run one of the shipped recipes without output, in place of an earlier run."""
    wanted = load_recipe(RECIPES / f"{recipe}.toml", settings)
    return qkv.train(wanted, folder, replace=True, console=Console(quiet=True))


def score(run: Run, split: str, name: str) -> float:
    """Return one score of a finished run."""
    return next(score.value for score in run.scores[split] if score.name == name)


def data_file(folder: Path, stem: str) -> Path:
    """Return the one file of a folder that has this stem."""
    paths = sorted(folder.glob(f"{stem}.*"))
    if len(paths) != 1:
        raise UserError(f"{folder} holds {len(paths)} files named {stem}.…, but must hold one.")
    return paths[0]


def spread(values: Sequence[float]) -> Figure:
    """Return the mean and the standard deviation, or a single value as it is."""
    return [mean(values), stdev(values)] if len(values) > 1 else values[0]


def processor(device: torch.device) -> str:
    """Name the processor; of a CPU also its instructions and the threads that are used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name()
    names = [platform.machine()]
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    threads = torch.get_num_threads()
    used = "1 thread, CPU time" if counts_cpu_time() else f"{threads} threads"
    return f"{names[0]} ({torch.backends.cpu.get_cpu_capability()}), {used}"


def counts_cpu_time() -> bool:
    """Whether to count CPU time, which other programs do not change: one thread, no GPU."""
    return torch.get_num_threads() == 1 and not torch.cuda.is_available()


def versions() -> dict[str, str]:
    """Return the versions of the libraries that are compared."""
    found = {"torch": torch.__version__}
    with suppress(PackageNotFoundError):
        found["transformers"] = version("transformers")
    return found


def synchronize() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(work: Work) -> float:
    """Time one call, including the GPU's work; one in another process returns its own time."""
    clock = time.process_time if counts_cpu_time() else time.perf_counter
    synchronize()
    start = clock()
    own = work()
    synchronize()
    return own if isinstance(own, Elapsed) else clock() - start


def interleaved(works: Mapping[str, Work], repeats: int) -> dict[str, float]:
    """Return the median time of each, taken in turns, so that other load affects all alike."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            time.sleep(PAUSE)
            times[name].append(seconds(work))
    return {name: median(values) for name, values in times.items()}


def peak_memory(work: Work, device: torch.device) -> float:
    """Return the MiB that a call allocates at most, beyond what was allocated before it."""
    work()
    synchronize()
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    return _peak_allocated(work)


def built(build: Callable[[], Work], device: torch.device) -> tuple[Work, float]:
    """Build what is to be timed and run it; return it with the MiB that both take at most.

    That is all that a side holds: weights, optimizer state, batches, activations. On a GPU it is
    what torch has reserved: a recorded step keeps the memory that it ran in without allocating it.
    """
    if device.type != "cuda":
        works: list[Work] = []

        def build_and_run() -> None:
            works.append(build())
            works[0]()

        peak = _peak_allocated(build_and_run)
        return works[0], peak
    synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    work = build()
    work()  # compilation may take more for a while
    synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    work()
    synchronize()
    return work, (torch.cuda.max_memory_reserved() - before) / 2**20


def step_memory(step: Work, device: torch.device) -> float:
    """Return the MiB that a step takes beside the weights; it must not have run before."""
    return built(lambda: step, device)[1] if device.type == "cuda" else peak_memory(step, device)


def _peak_allocated(work: Work) -> float:
    """Return the MiB of tensors on the CPU that a call allocates at most."""
    activities = [ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        work()
    assert profile.profiler is not None
    events: list[Any] = profile.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    return max(accumulate([size for _, size in sorted(changes)], initial=0)) / 2**20


@dataclass
class Session:
    """One call of a benchmark command: what was asked for, and the records so far."""

    module: str
    device: torch.device
    options: argparse.Namespace
    shared: bool = field(default_factory=lambda: os.getloadavg()[0] > 0.5)
    records: list[Record] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def quick(self) -> bool:
        return bool(self.options.quick)

    @property
    def repeats(self) -> int:
        return 1 if self.quick else REPEATS[self.device.type]

    def wants(self, key: str) -> bool:
        """Whether the row was asked for."""
        return str(self.options.only) in key

    def compare(
        self,
        key: str,
        name: str,
        works: Mapping[str, Work],
        amounts: Mapping[str, float],
        check: str = "",
        flops: float = 0.0,
        memory: Mapping[str, float] | None = None,
    ) -> None:
        """Time ours ("qkv") and the peers in turns and record tokens per second of each.

        `flops` are those of the model for a token; `memory` is the peak of each side in MiB.
        """
        if self.options.profile:
            works["qkv"]()
            print(name)
            print_profile(works["qkv"], self.device)
        else:
            times = interleaved(works, self.repeats)
            rates = {side: round(amounts[side] / times[side], 1) for side in works}
            details: dict[str, Mapping[str, float]] = {}
            if flops and self.on_gpu:
                peak = find_hardware("cuda").half
                details["MFU, %"] = {s: round(100 * flops * r / peak, 1) for s, r in rates.items()}
            if memory:
                details["peak MiB"] = {side: round(memory[side]) for side in works}
            ours = rates.pop("qkv")
            self.record(key, name, ours, "tokens/s", rates, check, details)
        torch.compiler.reset()
        gc.collect()

    def record(
        self,
        key: str,
        name: str,
        ours: float | Mapping[str, Figure],
        unit: str = "",
        peers: Mapping[str, float] | None = None,
        check: str = "",
        details: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """Print one row, and keep it in docs/benchmarks.json if that was asked for."""
        busy = ", shared with other work" if self.shared and not self.on_gpu else ""
        record = Record(
            key,
            self.device.type,
            name,
            ours,
            peers or {},
            unit,
            str(date.today()),
            processor(self.device) + busy,
            versions(),
            f"{self.module} {' '.join(self.options.arguments)}".strip(),
            check,
            details or {},
        )
        self.records.append(record)
        print(record.describe(), flush=True)
        if self.options.save:
            save([record])


def parser(module: str, documentation: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    found = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=documentation,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    best = "cuda" if torch.cuda.is_available() else "cpu"
    found.add_argument("--device", choices=["cpu", "cuda"], default=best)
    found.add_argument("--save", action="store_true", help="write rows to docs/benchmarks.json")
    return found


def run(
    body: Callable[[Session], object],
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None = None,
) -> Session:
    """Parse the command line and run a benchmark."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    defaults = {"only": "", "quick": False, "profile": False}
    options = parser.parse_args(given, argparse.Namespace(**defaults))
    options.arguments = [word for word in given if word != "--save"]
    session = Session(parser.prog, torch.device(options.device), options)
    try:
        body(session)
    except UserError as error:
        raise SystemExit(str(error)) from error
    return session


def speed_parser(module: str, documentation: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of the speed comparisons."""
    found = parser(module, documentation)
    found.add_argument("--only", default="", metavar="KEY", help="rows whose key contains this")
    found.add_argument("--quick", action="store_true", help="tiny models, to see that all works")
    found.add_argument("--profile", action="store_true", help="instead: where our time goes")
    return found


def print_profile(work: Work, device: torch.device, most: int = 15) -> None:
    """Print where the time of one call goes, by kernel (on a CPU, by operation)."""
    # Without these, graphs captured after a first profile may crash under some versions of CUDA.
    os.environ |= {"DISABLE_CUPTI_LAZY_REINIT": "1", "TEARDOWN_CUPTI": "0"}
    on_gpu = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    synchronize()
    with torch.profiler.profile(activities=[activity]) as profile:
        spent = seconds(work)
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    events: list[Any] = [
        event
        for event in profile.key_averages()
        if event.device_type == kind and not event.is_user_annotation
    ]
    times = [e.self_device_time_total if on_gpu else e.self_cpu_time_total for e in events]
    total = sum(times)
    print(f"{1e3 * spent:.1f} ms under the profiler, {total / 1e3:.1f} ms of them in kernels")
    ranked = sorted(zip(times, events, strict=True), key=lambda pair: -pair[0])
    for microseconds, event in ranked[:most]:
        share = microseconds / total
        print(f"{microseconds / 1e3:9.2f} ms {share:6.1%} {event.count:7,} × {event.key[:100]}")
