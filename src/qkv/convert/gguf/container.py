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
from qkv.model.quantized_matrix import GROUP, MIDDLE, Int4Matrix, Int8Matrix, QuantizedMatrix

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


Bytes = NDArray[np.uint8]
FLOATS = ("F16", "BF16", "F32", "F64")
HALF = 2  # bytes of a float16


def _q4_0(data: Bytes) -> Int4Matrix:
    """Read blocks of a scale and 32 integers: w = (q - 8) · scale."""
    blocks = data.reshape(len(data), -1, HALF + GROUP // 2)
    scale = _halves(blocks[..., :HALF])
    return Int4Matrix.packed(_integers(blocks[..., HALF:]), scale, torch.zeros_like(scale))


def _q4_1(data: Bytes) -> Int4Matrix:
    """Read blocks of a scale, a least value and 32 integers: w = q · scale + least."""
    blocks = data.reshape(len(data), -1, 2 * HALF + GROUP // 2)
    scale, least = _halves(blocks[..., :HALF]), _halves(blocks[..., HALF : 2 * HALF])
    return Int4Matrix.packed(_integers(blocks[..., 2 * HALF :]), scale, least + MIDDLE * scale)


def _q4_k(data: Bytes) -> Int4Matrix:
    """Read blocks of 8 groups, whose scales and least values are integers with two scales."""
    from gguf.quants import Q4_K

    n_groups, n_scales = 8, Q4_K.K_SCALE_SIZE
    blocks = data.reshape(-1, 2 * HALF + n_scales + n_groups * GROUP // 2)
    scale, least = Q4_K.get_scale_min(np.ascontiguousarray(blocks[:, 2 * HALF : -n_groups * 16]))
    scales = _halves(blocks[:, :HALF])[:, None] * torch.from_numpy(scale.astype(np.float32))
    lows = _halves(blocks[:, HALF : 2 * HALF])[:, None] * torch.from_numpy(least.astype(np.float32))
    # Two groups share their bytes: one has the lower halves.
    integers = blocks[:, -n_groups * 16 :].reshape(-1, n_groups // 2, 1, GROUP)
    integers = np.concatenate([integers & 15, integers >> 4], axis=2)
    rows = torch.from_numpy(integers).reshape(len(data), -1)
    scales, lows = scales.view(len(data), -1), lows.view(len(data), -1)
    return Int4Matrix.packed(rows, scales, MIDDLE * scales - lows)


def _halves(data: Bytes) -> Tensor:
    """Read float16 numbers from the last two bytes' dimension."""
    numbers = np.ascontiguousarray(data).view(np.float16)[..., 0]
    return torch.from_numpy(numbers.astype(np.float32))


def _integers(data: Bytes) -> Tensor:
    """Read blocks of 32 integers, the first 16 in the lower halves of bytes, to (out, in)."""
    return torch.from_numpy(np.concatenate([data & 15, data >> 4], axis=-1)).flatten(1)


BLOCKS_IN_4_BITS = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k}


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

    @property
    def is_quantized(self) -> bool:
        """Whether it is a matrix of integers and not of floats."""
        return len(self.shape) == 2 and self.type.name not in FLOATS

    def matrix(self) -> QuantizedMatrix:
        """Return a quantised matrix in 4 bits where its blocks have as many, else in 8.

        Blocks in 4 bits keep their integers, and their scales are rounded to bfloat16. Others are
        rounded anew, to integers with one scale for each row.
        """
        read = BLOCKS_IN_4_BITS.get(self.type.name)
        return read(self.data) if read else Int8Matrix.of(self.read())


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
    if not shape:
        raise ValueError(f"the tensor {name} has no dimensions")
    return name, shape[::-1], cursor.number("I"), cursor.number("Q")


def _tensor(content: mmap.mmap, start: int, name: str, shape: Shape, type: int, at: int) -> Any:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import quant_shape_to_byte_shape

    kind = GGMLQuantizationType(type)
    bytes = quant_shape_to_byte_shape(shape, kind)
    size = int(np.prod(bytes))
    data = np.frombuffer(content, np.uint8, size, start + at).reshape(bytes)
    return StoredTensor(name, shape, kind, data)
