"""Timing and reporting, the same for ours and for the peers."""

import platform
import time
from collections.abc import Callable
from datetime import date
from statistics import median

import torch


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
