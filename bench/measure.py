"""Timing and reporting, the same for ours and for the peers."""

import platform
import time
from collections.abc import Callable
from datetime import date
from statistics import median

import torch


def machine() -> str:
    """Date, processor and versions, as they stand beside every result."""
    import transformers

    processor = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    )
    return (
        f"{date.today()}, {processor}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}"
    )


def seconds(work: Callable[[], object], repeats: int, warm_ups: int = 2) -> float:
    """Median time of one call, the GPU's work included, after a few calls that do not count."""
    for _ in range(warm_ups):
        work()
    times = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - start)
    return median(times)


def interleaved(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median time of each, taken in turns, so that a busy moment of the machine strikes all."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(seconds(work, 1, warm_ups=0))
    return {name: median(found) for name, found in times.items()}


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def report(title: str, rates: dict[str, float], unit: str = "tok/s") -> None:
    """One row: each figure, and ours over the better of the peers."""
    ours = rates["qkv"]
    peers = {name: rate for name, rate in rates.items() if not name.startswith("qkv")}
    figures = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    print(f"{title}: {figures} {unit}; ratio {ours / max(peers.values()):.2f}", flush=True)
