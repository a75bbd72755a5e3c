"""The container of a GGUF file: values and tensors by name.

The `gguf` package knows the ways of quantisation. Its reader makes several arrays of each word in a
vocabulary, which takes seconds, so the little that stands before the tensors is read here.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.convert.huggingface.foreign_weights import Shape
from qkv.errors import UserError
from qkv.files import refuse_special

NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
TEXT, ARRAY = 8, 9  # the other types of values
VERSIONS = (2, 3)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it stands in a file."""

    name: str
    shape: Shape
    type: Any  # how it is quantised
    data: NDArray[np.uint8]  # (…, bytes of a row)

    def read(self) -> Tensor:
        """Its numbers, whatever they are quantised as."""
        from gguf.quants import dequantize

        try:
            values = dequantize(self.data, self.type)
        except NotImplementedError as error:
            raise UserError(
                f"The tensor {self.name} is quantised as {self.type.name}, which cannot be read; "
                f"take a file with another quantisation, such as Q8_0."
            ) from error
        return torch.from_numpy(np.array(values, np.float32)).view(self.shape)


class GgufFile:
    """A whole file; its tensors are read when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        refuse_special(path)
        try:
            with path.open("rb") as opened:
                if opened.read(4) != b"GGUF":
                    raise UserError(
                        f"{path} is not a GGUF file, whatever its name says; fetch it again."
                    )
                content = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            self.values, self.tensors = _read(content)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from error
        except (
            ArithmeticError,
            KeyError,
            RecursionError,
            TypeError,
            ValueError,
            struct.error,
        ) as error:
            raise UserError(
                f"{path} is truncated, damaged or of an unknown version ({error}); fetch it again."
            ) from error

    @property
    def kind(self) -> str:
        """The architecture."""
        return str(self.values.get("general.architecture"))

    def get(self, name: str, default: Any = None) -> Any:
        """A value; the model's own stand under the architecture's name."""
        found = self.values.get(name, self.values.get(f"{self.kind}.{name}"))
        return default if found is None else found

    def need(self, name: str) -> Any:
        """A value without which there is no model."""
        found = self.get(name)
        if found is None:
            raise UserError(f"{self.path} does not say '{self.kind}.{name}'; fetch it again.")
        return found

    def count(self, name: str) -> int:
        """A size without which there is no model: a whole number of at least 1."""
        value = self.need(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(
                f"{self.path}: '{self.kind}.{name}' is {value!r}, but must be a whole number of at "
                f"least 1; fetch the file again."
            )
        return value


class _Cursor:
    """A place in a file that moves on with what is read."""

    def __init__(self, content: mmap.mmap, at: int) -> None:
        self.content, self.at = content, at

    def number(self, code: str) -> Any:
        (found,) = struct.unpack_from(f"<{code}", self.content, self.at)
        self.at += struct.calcsize(f"<{code}")
        # 1e-05 is meant where 32 bits leave 9.99999974e-06.
        return float(str(np.float32(found))) if code == "f" else found

    def text(self) -> str:
        size = self.number("Q")
        self.at += size
        if self.at > len(self.content):
            raise ValueError("it ends within a word")
        return self.content[self.at - size : self.at].decode()

    def value(self, type: int) -> Any:
        if type == TEXT:
            return self.text()
        if type != ARRAY:
            return self.number(NUMBERS[type])
        type, size = self.number("I"), self.number("Q")
        if type not in NUMBERS:
            return [self.value(type) for _ in range(size)]
        kind = np.dtype(f"<{NUMBERS[type]}")
        found = np.frombuffer(self.content, kind, size, self.at)
        self.at += found.nbytes
        return found.tolist()


def _read(content: mmap.mmap) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    cursor = _Cursor(content, 4)
    version = cursor.number("I")
    if version not in VERSIONS:
        raise ValueError(f"version {version}")
    n_tensors, n_values = cursor.number("Q"), cursor.number("Q")
    values = {}
    for _ in range(n_values):
        name = cursor.text()
        values[name] = cursor.value(cursor.number("I"))
    heads = [_tensor_head(cursor) for _ in range(n_tensors)]
    step = values.get("general.alignment", 32)
    start = -(-cursor.at // step) * step
    tensors = [_tensor(content, start, *head) for head in heads]
    return values, {tensor.name: tensor for tensor in tensors}


def _tensor_head(cursor: _Cursor) -> tuple[str, Shape, int, int]:
    name, n_dimensions = cursor.text(), cursor.number("I")
    shape = tuple(cursor.number("Q") for _ in range(n_dimensions))
    return name, shape[::-1], cursor.number("I"), cursor.number("Q")


def _tensor(content: mmap.mmap, start: int, name: str, shape: Shape, type: int, at: int) -> Any:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import quant_shape_to_byte_shape

    kind = GGMLQuantizationType(type)
    bytes = quant_shape_to_byte_shape(shape, kind)
    size = int(np.prod(bytes))
    data = np.frombuffer(content, np.uint8, size, start + at).reshape(bytes)
    return StoredTensor(name, shape, kind, data)
