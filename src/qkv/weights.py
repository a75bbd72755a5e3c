"""Weights on disk: safetensors files that are whole or not there, and fit or say why not."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from qkv.errors import UserError
from qkv.files import replacing


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors as safetensors, or leave the file before it untouched."""
    contiguous = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    with replacing(path) as beside:
        try:
            save_file(contiguous, beside, metadata)
        except SafetensorError as error:
            full = "No space left" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a whole safetensors file."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def read_metadata(path: Path) -> dict[str, str]:
    """Read what stands beside the tensors; that the file is whole is checked all the same."""
    with _opened(path) as file:
        return file.metadata() or {}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file, or say in a sentence why it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError as error:
        raise UserError(f"There is no file {path}.") from error
    except PermissionError as error:
        raise UserError(f"{path} may not be read by this user; change its permissions.") from error
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is truncated or damaged and cannot be read ({error}); "
            f"restore it from a copy or train again."
        ) from error


def load_weights(model: nn.Module, tensors: dict[str, Tensor], where: Path) -> None:
    """Copy tensors into the model's weights, naming each one that does not fit."""
    parameters = dict(model.named_parameters())
    problems = [f"missing {name}" for name in parameters.keys() - tensors.keys()]
    problems += [f"unexpected {name}" for name in tensors.keys() - parameters.keys()]
    for name in parameters.keys() & tensors.keys():
        ours, theirs = tuple(parameters[name].shape), tuple(tensors[name].shape)
        if ours != theirs:
            problems.append(f"{name} is {list(theirs)} but should be {list(ours)}")
    if problems:
        raise UserError(f"{where} does not fit its config: {'; '.join(sorted(problems))}.")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
