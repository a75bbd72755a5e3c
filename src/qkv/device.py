"""Device, precision and memory of this machine."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn

from qkv.config import TrainConfig
from qkv.errors import UserError

M = TypeVar("M", bound=nn.Module)
DTYPES = ("fp32", "bf16", "int8", "int4")  # of a model's weights


def pick_device(name: str | torch.device) -> torch.device:
    """Return the device of this name; 'auto' is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"Unknown device {name!r}; use 'cpu', 'cuda' or 'auto'.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("No NVIDIA GPU is available here; use device 'cpu' or 'auto'.")
    return device


def mixed_precision(config: TrainConfig, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context that runs matrix products in the chosen precision; weights stay float32."""
    half = is_half(config, device)
    return torch.autocast(device.type, dtype=torch.bfloat16) if half else nullcontext()


def is_half(config: TrainConfig, device: torch.device) -> bool:
    """Whether matrix products are in bfloat16."""
    if config.precision == "auto":
        return has_bfloat16(device)
    return config.precision == "bfloat16"


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices faster than float32 ones."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and _cpu_has_bfloat16()


@cache
def _cpu_has_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16 matrices."""
    # Older versions of torch that we support cannot tell.
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def is_on(choice: str, device: torch.device) -> bool:
    """Whether an auto/on/off setting is on; 'auto' is on for GPUs that have bfloat16.

    Older GPUs lack the kernels that make packing and compiling worth while.
    """
    return choice == "on" or (choice == "auto" and device.type == "cuda" and has_bfloat16(device))


def lay_by_columns(model: M) -> M:
    """Store weights with out > in column-major, which is faster for single-token CPU products."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.out_features > module.in_features:
            module.weight.data = module.weight.data.t().contiguous().t()
    return model


def float_dtype(device: torch.device, dtype: str | None = None) -> torch.dtype:
    """Return what a loaded model's floats are: as `dtype` (of DTYPES) says, or as usual.

    By default, and beside quantised weights, a GPU that has bfloat16 holds them in it, and a CPU in
    float32.
    """
    has_half = device.type == "cuda" and has_bfloat16(device)
    half = dtype == "bf16" or (dtype != "fp32" and has_half)
    return torch.bfloat16 if half else torch.float32


def release_memory() -> None:
    """Return freed memory to the system, where the C library can (glibc)."""
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def memory_errors(device: torch.device, advice: str) -> Iterator[None]:
    """Turn torch's out-of-memory errors into a UserError that ends in `advice`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # On a CPU torch raises a RuntimeError: "… memory: you tried to allocate … bytes."
        on_cpu = isinstance(error, MemoryError) or "you tried to allocate" in str(error)
        if not on_cpu and "out of memory" not in str(error):
            raise
        where = "The machine" if on_cpu else f"The GPU ({device})"
        raise UserError(f"{where} ran out of memory; {advice}.") from error
