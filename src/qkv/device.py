"""Where and how precisely to compute: what 'auto' means on this machine."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn

from qkv.config import TrainConfig
from qkv.errors import UserError

M = TypeVar("M", bound=nn.Module)


def pick_device(name: str) -> torch.device:
    """The device that a recipe or a command line names; auto is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"Unknown device {name!r}; use 'cpu', 'cuda' or 'auto'.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("No NVIDIA GPU is available here; use device 'cpu' or 'auto'.")
    return device


def mixed_precision(config: TrainConfig, device: torch.device) -> AbstractContextManager[Any]:
    """A context in which matrix products run in the chosen precision; weights stay in float32."""
    half = config.precision == "bfloat16"
    if config.precision == "auto":
        half = has_bfloat16(device)
    return torch.autocast(device.type, dtype=torch.bfloat16) if half else nullcontext()


def has_bfloat16(device: torch.device) -> bool:
    """Whether products of bfloat16 matrices are faster there than those of float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and _cpu_has_bfloat16()


@cache
def _cpu_has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices by instructions of their own, twice as fast."""
    # The question is newer than the oldest torch that we run on.
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def is_on(choice: str, device: torch.device) -> bool:
    """Whether an auto/on/off setting holds; what is meant for GPUs is on there by itself.

    Older GPUs, those without bfloat16, lack the kernels that make it worth while.
    """
    return choice == "on" or (choice == "auto" and device.type == "cuda" and has_bfloat16(device))


def lay_by_columns(model: M) -> M:
    """Store weights with out > in column-major, which is faster for single-token CPU products."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.out_features > module.in_features:
            module.weight.data = module.weight.data.t().contiguous().t()
    return model


def place(model: M, device: torch.device | None) -> M:
    """Move a model to its device; a GPU that has bfloat16 holds the weights in it."""
    if device is None or device.type != "cuda":
        return model
    return model.to(device, torch.bfloat16 if has_bfloat16(device) else torch.float32)
