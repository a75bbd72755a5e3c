"""Weights on disk: safetensors files that are whole or not there, and fit or say why not."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from qkv.errors import UserError
from qkv.files import refuse_special, replacing
from qkv.model.quantized_matrix import SCALE, Int8Matrix

FLOATS = ("F64", "F32", "BF16", "F16")  # what weights are stored as
INTEGERS = "I8"  # or as integers, with a scale for each row under the suffix SCALE


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors as safetensors, or leave the file before it untouched."""
    contiguous = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    with replacing(path) as beside:
        try:
            save_file(contiguous, beside, metadata)
        except SafetensorError as error:
            full = "No space left" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error


class StoredTensors(Mapping[str, Tensor]):
    """Tensors in safetensors files, each read when it is asked for."""

    def __init__(self, *paths: Path) -> None:
        self._files: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.kinds: dict[str, str] = {}  # as safetensors calls them: F32, I8 …
        for path in paths:
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118
                    self._files[name] = path
                    stored = file.get_slice(name)
                    self.shapes[name] = tuple(stored.get_shape())
                    self.kinds[name] = stored.get_dtype()
        self._scales = {
            name: self._files.pop(name + SCALE)
            for name, kind in self.kinds.items()
            if kind == INTEGERS and name + SCALE in self._files
        }

    @property
    def quantized(self) -> frozenset[str]:
        """The names of the weights that are stored as scaled integers."""
        return frozenset(self._scales)

    def __getitem__(self, name: str) -> Tensor:
        matrix = self.matrix(name)
        return matrix.float() if matrix else self._read(self._files[name], name)

    def matrix(self, name: str) -> Int8Matrix | None:
        """Read a weight that is stored as scaled integers; None where it is floats."""
        if name not in self._scales:
            return None
        values = self._read(self._files[name], name)
        return Int8Matrix(values, self._read(self._scales[name], name + SCALE))

    def _read(self, path: Path, name: str) -> Tensor:
        with _opened(path) as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


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
    refuse_special(path)
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (FileNotFoundError, PermissionError) as error:  # safetensors takes one for the other
        if path.exists():
            hint = "change its permissions"
            raise UserError(f"{path} may not be read by this user; {hint}.") from error
        raise UserError(f"There is no file {path}.") from error
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is truncated or damaged and cannot be read ({error}); "
            f"restore it from a copy, fetch it again or train again."
        ) from error


def fill_empty(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    where: Path,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Give a model that has shapes only its weights, or name each that is wrong.

    They go to the device one at a time, so that this machine's memory never holds them all.
    """
    check_fit(dict(model.named_parameters()), tensors, where)
    filled: dict[int, nn.Parameter] = {}  # matrices that are shared stay so
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in filled:
                fresh = torch.empty(parameter.shape, dtype=dtype or parameter.dtype, device=device)
                filled[id(parameter)] = nn.Parameter(fresh.copy_(tensors[names[id(parameter)]]))
            setattr(module, name, filled[id(parameter)])


def check_fit(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor], where: Path) -> None:
    """See that there is a tensor of the right shape for each weight, and name each that is not."""
    shapes = tensors.shapes if isinstance(tensors, StoredTensors) else None
    kinds = tensors.kinds if isinstance(tensors, StoredTensors) else {}
    quantized = tensors.quantized if isinstance(tensors, StoredTensors) else frozenset()
    problems = [f"missing {name}" for name in parameters.keys() - tensors.keys()]
    problems += [f"unexpected {name}" for name in tensors.keys() - parameters.keys()]
    for name in parameters.keys() & tensors.keys():
        ours = tuple(parameters[name].shape)
        theirs = shapes[name] if shapes else tuple(tensors[name].shape)
        if ours != theirs:
            problems.append(f"{name} is {list(theirs)} but should be {list(ours)}")
        if kinds.get(name, "F32") not in FLOATS and name not in quantized:
            problems.append(f"{name} is {kinds[name]}, no float of 16 bits or more")
    if problems:
        raise UserError(f"{where} does not fit its config: {'; '.join(sorted(problems))}.")


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], where: Path) -> None:
    """Copy tensors into the model's weights, naming each one that does not fit."""
    parameters = dict(model.named_parameters())
    check_fit(parameters, tensors, where)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
