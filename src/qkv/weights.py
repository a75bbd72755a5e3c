"""Weights on disk: safetensors files that are whole or not there, and fit or say why not."""

from __future__ import annotations

import errno
import re
import zlib
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
from qkv.model.quantized_matrix import (
    GROUP,
    OFFSET,
    SCALE,
    Int4Matrix,
    Int8Matrix,
    QuantizedMatrix,
)

FLOATS = ("F64", "F32", "BF16", "F16")  # what weights are stored as
INT8, INT4 = "I8", "U8"  # or as integers, one or two a byte, with their scales beside them


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors as safetensors, or leave the file before it untouched."""
    contiguous = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    with replacing(path) as beside:
        try:
            save_file(contiguous, beside, metadata)
        except SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error


def checksum(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """Return the CRC-32 of tensors with their names, kinds and shapes, and of a text beside them.

    It does not depend on their order, which safetensors changes.
    """
    value = zlib.crc32(text.encode())
    for name in sorted(tensors):
        value = _add_to_checksum(value, name, tensors[name])
    return f"{value:08x}"


def _add_to_checksum(value: int, name: str, tensor: Tensor) -> int:
    value = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), value)
    return zlib.crc32(_bytes_of(tensor), value)


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def damaged(path: Path) -> UserError:
    """Build the error of a file whose content is not what its checksum says."""
    return UserError(
        f"{path} is damaged: its content differs from its checksum; restore it from a copy, fetch "
        f"it again or train again."
    )


class LazyWeights(Mapping[str, Tensor]):
    """Weights that are read when they are asked for; their shapes are known before."""

    shapes: dict[str, tuple[int, ...]]
    quantized: frozenset[str] = frozenset()  # names of those that are stored as scaled integers

    def matrix(self, name: str) -> QuantizedMatrix | None:
        """Read a weight that is stored as scaled integers; None where it is floats."""
        return None


class StoredTensors(LazyWeights):
    """Tensors in safetensors files."""

    def __init__(self, *paths: Path) -> None:
        self._files: dict[str, Path] = {}  # of each tensor
        self.shapes = {}
        self.kinds: dict[str, str] = {}  # as safetensors calls them: F32, I8 …
        for path in paths:
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118
                    self._files[name] = path
                    stored = file.get_slice(name)
                    self.shapes[name] = tuple(stored.get_shape())
                    self.kinds[name] = stored.get_dtype()
        self._names = dict.fromkeys(self._files)  # of weights; scales are no weights
        self.quantized = frozenset(filter(self._is_quantized, self.kinds))
        for name in self.quantized:
            for suffix in (SCALE, OFFSET):
                self._names.pop(name + suffix, None)
            if self.kinds[name] == INT4:
                rows, width = self.shapes[name]
                self.shapes[name] = (rows, 2 * width)

    def _is_quantized(self, name: str) -> bool:
        """Whether a tensor is integers whose scales are there and fit."""
        if self.kinds[name] not in (INT8, INT4) or len(self.shapes[name]) != 2:
            return False
        rows, width = self.shapes[name]
        groups = (rows, 2 * width // GROUP)
        expected: dict[str, tuple[int, ...]] = {SCALE: groups, OFFSET: groups}
        if self.kinds[name] == INT8:
            expected = {SCALE: (rows,)}
        return all(self.shapes.get(name + suffix) == shape for suffix, shape in expected.items())

    def __getitem__(self, name: str) -> Tensor:
        matrix = self.matrix(name)
        return matrix.float() if matrix else self._read(name)

    def matrix(self, name: str) -> QuantizedMatrix | None:
        """Read a weight that is stored as scaled integers; None where it is floats."""
        if name not in self.quantized:
            return None
        values, scale = self._read(name), self._read(name + SCALE)
        if self.kinds[name] == INT8:
            return Int8Matrix(values, scale)
        return Int4Matrix(values, scale, self._read(name + OFFSET))

    def _read(self, name: str) -> Tensor:
        with _opened(self._files[name]) as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def checksum(self) -> str:
        """Return the CRC-32 of all tensors as they are stored, read one at a time."""
        value = zlib.crc32(b"")
        for name in sorted(self._files):
            value = _add_to_checksum(value, name, self._read(name))
        return f"{value:08x}"

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


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
    shapes = tensors.shapes if isinstance(tensors, LazyWeights) else None
    quantized = tensors.quantized if isinstance(tensors, LazyWeights) else frozenset()
    kinds = tensors.kinds if isinstance(tensors, StoredTensors) else {}
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
