"""What hardware does in a second and holds: a table of GPUs, and this machine's memory."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from qkv.errors import UserError

GB, GIB, TERA = 1e9, 2**30, 1e12


@dataclass(frozen=True)
class Hardware:
    """One device: what it computes, reads and holds, and how it is connected to others."""

    name: str
    half: float  # FLOP/s of dense bfloat16 products with float32 sums
    single: float  # FLOP/s of float32 products
    bandwidth: float  # bytes/s of its memory
    memory: float  # bytes
    link: float = 0.0  # bytes/s to another GPU of its node, each way
    network: float = 0.0  # bytes/s to another node, for each GPU, each way
    per_node: int = 8

    @property
    def is_gpu(self) -> bool:
        """Whether this is a GPU of the table, and not a CPU."""
        return self.link > 0


# From the makers' data sheets, without sparsity. Links: half of the bidirectional NVLink figure, or
# PCIe 4 ×16. Networks: InfiniBand NDR (400 Gb/s), HDR (200 Gb/s) or Ethernet (100 Gb/s) a GPU.
GPUS = {
    gpu.name: gpu
    for gpu in (
        Hardware("b200", 2250 * TERA, 75 * TERA, 8000 * GB, 180 * GB, 900 * GB, 50 * GB),
        Hardware("h200", 989 * TERA, 67 * TERA, 4800 * GB, 141 * GB, 450 * GB, 50 * GB),
        Hardware("h100", 989 * TERA, 67 * TERA, 3350 * GB, 80 * GB, 450 * GB, 50 * GB),
        Hardware("a100", 312 * TERA, 19.5 * TERA, 2039 * GB, 80 * GB, 300 * GB, 25 * GB),
        Hardware("a100-40gb", 312 * TERA, 19.5 * TERA, 1555 * GB, 40 * GB, 300 * GB, 25 * GB),
        Hardware("l40s", 362 * TERA, 91.6 * TERA, 864 * GB, 48 * GB, 25 * GB, 12.5 * GB),
        Hardware("a10", 125 * TERA, 31.2 * TERA, 600 * GB, 24 * GB, 25 * GB, 12.5 * GB),
        Hardware("4090", 165 * TERA, 82.6 * TERA, 1008 * GB, 24 * GB, 25 * GB, 12.5 * GB),
        Hardware("3090", 71 * TERA, 35.6 * TERA, 936 * GB, 24 * GB, 25 * GB, 12.5 * GB),
    )
}


def find_hardware(name: str) -> Hardware:
    """Return the device of this name: one of the table, or 'cpu' or 'cuda' of this machine."""
    name = name.lower().removeprefix("rtx").strip(" -")
    if name in GPUS:
        return GPUS[name]
    if name == "cpu":
        # Its speed is not needed, because steps are timed on it.
        return Hardware("cpu", 0.0, 0.0, 0.0, float(system_memory()))
    if name.startswith("cuda") and torch.cuda.is_available():
        return _this_gpu(torch.device(name))
    if name.startswith("cuda"):
        raise UserError(
            f"No NVIDIA GPU is available here; name one to plan for: {', '.join(GPUS)}."
        )
    raise UserError(f"Unknown device {name!r}; use 'cpu', 'cuda' or one of: {', '.join(GPUS)}.")


def _this_gpu(device: torch.device) -> Hardware:
    """Describe a GPU of this machine by the table's figures and its own memory."""
    properties = torch.cuda.get_device_properties(device)
    words = properties.name.lower().split()
    known = next((gpu for name, gpu in GPUS.items() if name in words), GPUS["a100"])
    return replace(known, name=properties.name, memory=float(properties.total_memory))


def device_memory(device: torch.device) -> int:
    """Bytes of memory of a device of this machine, whether in use or not."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return system_memory()


def system_memory() -> int:
    """Bytes of this machine's memory, or of the container's share of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = int(Path(path).read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        total = min(total, limit)
    return total
