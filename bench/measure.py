"""Timing and reporting, the same for ours and for the peers."""

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from statistics import median

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity


def machine(device: torch.device) -> str:
    """Date, processor and versions, as they stand beside every result."""
    import transformers

    processor = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    )
    return (
        f"{date.today()}, {processor}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}"
    )


def seconds(work: Callable[[], object]) -> float:
    """The time of one call, the GPU's work included."""
    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start


def interleaved(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median time of each, taken in turns, so that a busy moment of the machine strikes all."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(seconds(work))
    return {name: median(found) for name, found in times.items()}


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def report(title: str, rates: dict[str, float]) -> None:
    """One row: each figure, and ours over the better of the peers."""
    ours = rates["qkv"]
    peers = {name: rate for name, rate in rates.items() if not name.startswith("qkv")}
    figures = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    print(f"{title}: {figures} tok/s; ratio {ours / max(peers.values()):.2f}", flush=True)


@dataclass(frozen=True)
class Row:
    """One line of a table: tokens a second of ours ("qkv") and of each peer, and a check."""

    work: str
    rates: dict[str, float]
    check: str = ""

    HEADER = "| work | qkv tok/s | best peer tok/s | ratio | check |\n|---|---|---|---|---|"

    @property
    def best_peer(self) -> str:
        return max((name for name in self.rates if name != "qkv"), key=self.rates.__getitem__)

    @property
    def ratio(self) -> float:
        return self.rates["qkv"] / self.rates[self.best_peer]

    def as_table(self) -> str:
        ours, best = self.rates["qkv"], self.rates[self.best_peer]
        cells = (self.work, f"{ours:,.0f}", f"{self.best_peer} {best:,.0f}", f"{self.ratio:.2f}")
        return f"| {' | '.join(cells)} | {self.check} |"

    def as_json(self, machine: str) -> str:
        values = {**vars(self), "ratio": self.ratio, "machine": machine}
        return json.dumps(values, ensure_ascii=False)


def print_profile(work: Callable[[], object], device: torch.device, most: int = 15) -> None:
    """Where the time of one call goes, by kernel (on a CPU, by operation)."""
    # Or else graphs that are captured after a first profile may crash, under some versions of CUDA.
    os.environ |= {"DISABLE_CUPTI_LAZY_REINIT": "1", "TEARDOWN_CUPTI": "0"}
    on_gpu = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    synchronize()
    with torch.profiler.profile(activities=[activity]) as found:
        spent = seconds(work)
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    events = [e for e in found.key_averages() if e.device_type == kind and not e.is_user_annotation]
    times = [e.self_device_time_total if on_gpu else e.self_cpu_time_total for e in events]
    total = sum(times)
    print(f"{1e3 * spent:.1f} ms as the profiler saw it, {total / 1e3:.1f} ms of them in kernels")
    ranked = sorted(zip(times, events, strict=True), key=lambda pair: -pair[0])
    for microseconds, event in ranked[:most]:
        share = microseconds / total
        print(f"{microseconds / 1e3:9.2f} ms {share:6.1%} {event.count:7,} × {event.key[:100]}")
