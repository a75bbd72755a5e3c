"""Where and how precisely to compute: what 'auto' means on this machine."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from qkv.config import TrainConfig
from qkv.errors import UserError


def pick_device(name: str) -> torch.device:
    """The device that a recipe or a command line names; auto is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"Unknown device {name!r}; use 'cpu', 'cuda' or 'auto'.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("No NVIDIA GPU is available here; use device 'cpu' or 'auto'.")
    return device


def mixed_precision(config: TrainConfig, device: torch.device) -> AbstractContextManager[Any]:
    """A context in which matrix products run in the chosen precision; weights stay in float32."""
    precision = config.precision
    if precision == "auto":
        precision = "bfloat16" if device.type == "cuda" else "float32"
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def is_on(choice: str, device: torch.device) -> bool:
    """Whether an auto/on/off setting holds; what is meant for GPUs is on there by itself."""
    return choice == "on" or (choice == "auto" and device.type == "cuda")
