"""A matrix as integers and their scales: what a file stores and a quantised layer computes with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = 127  # of the integers in 8 bits
MIDDLE, MOST = 8, 15  # of the integers in 4 bits, which begin at 0
GROUP = 32  # inputs that share a scale in 4 bits
SCALE, OFFSET = "_scale", "_offset"  # after a weight's name: what a file holds beside its integers


@dataclass(frozen=True)
class Int8Matrix:
    """A matrix (out, in) in 8 bits, with a scale for each row: w = q · scale."""

    values: Tensor  # (out, in) int8
    scale: Tensor  # (out,) float32

    @classmethod
    def of(cls, weight: Tensor) -> Int8Matrix:
        """Round a matrix; its largest value in each row becomes ±127."""
        weight = weight.float()
        scale = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
        return cls((weight / scale[:, None]).round_().to(torch.int8), scale)

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of outputs and inputs."""
        out, width = self.values.shape
        return out, width

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return what a file holds of a weight of this name."""
        return {name: self.values, name + SCALE: self.scale}

    def to(self, device: torch.device) -> Int8Matrix:
        """Return the matrix on another device."""
        return Int8Matrix(self.values.to(device), self.scale.to(device))

    def __getitem__(self, rows: Tensor) -> Int8Matrix:
        """Return some of the rows, in the shape of their indices."""
        return Int8Matrix(self.values[rows], self.scale[rows])

    def float(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the matrix as floats, (out, in)."""
        return self.values.to(dtype) * self.scale.to(dtype)[..., None]


@dataclass(frozen=True)
class Int4Matrix:
    """A matrix (out, in) in 4 bits, with a scale and an offset for each group of 32 inputs.

    w = (q - 8) · scale + offset, with q from 0 to 15. A byte holds two neighbours of a row: that of
    the even column in its lower half.
    """

    values: Tensor  # (out, in / 2) uint8
    scale: Tensor  # (out, in / 32) bfloat16
    offset: Tensor  # (out, in / 32) bfloat16

    @classmethod
    def of(cls, weight: Tensor) -> Int4Matrix:
        """Round a matrix; a group's smallest and largest value become 0 and 15."""
        groups = weight.float().unflatten(1, (-1, GROUP))  # (out, in / 32, 32)
        low, high = groups.aminmax(dim=2)
        tiny = torch.finfo(torch.bfloat16).tiny
        scale = ((high - low) / MOST).clamp(min=tiny).bfloat16()
        offset = (low + MIDDLE * scale.float()).bfloat16()
        steps = (groups - offset.float()[..., None]) / scale.float()[..., None]
        return cls.packed((steps.round_() + MIDDLE).clamp_(0, MOST).flatten(1), scale, offset)

    @classmethod
    def packed(cls, integers: Tensor, scale: Tensor, offset: Tensor) -> Int4Matrix:
        """Store integers (out, in) from 0 to 15 two to a byte."""
        even, odd = integers.to(torch.uint8).unflatten(1, (-1, 2)).unbind(2)
        return cls(even | odd << 4, scale.bfloat16(), offset.bfloat16())

    @staticmethod
    def fits(shape: tuple[int, ...]) -> bool:
        """Whether a matrix of this shape has whole groups."""
        return len(shape) == 2 and shape[1] % GROUP == 0

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of outputs and inputs."""
        out, width = self.values.shape
        return out, 2 * width

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return what a file holds of a weight of this name."""
        return {name: self.values, name + SCALE: self.scale, name + OFFSET: self.offset}

    def to(self, device: torch.device) -> Int4Matrix:
        """Return the matrix on another device."""
        return Int4Matrix(*(x.to(device) for x in (self.values, self.scale, self.offset)))

    def __getitem__(self, rows: Tensor) -> Int4Matrix:
        """Return some of the rows, in the shape of their indices."""
        return Int4Matrix(self.values[rows], self.scale[rows], self.offset[rows])

    def integers(self) -> Tensor:
        """Return the integers from 0 to 15, (out, in)."""
        return torch.stack((self.values & MOST, self.values >> 4), dim=-1).flatten(-2)

    def float(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the matrix as floats, (out, in)."""
        steps = self.integers().to(dtype).sub(MIDDLE).unflatten(-1, (-1, GROUP))
        scale, offset = (x.to(dtype)[..., None] for x in (self.scale, self.offset))
        return (steps * scale + offset).flatten(-2)


QuantizedMatrix = Int8Matrix | Int4Matrix


def stack_rows(matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """Stack matrices of equal widths; where some have 4 bits and some 8, all get 8."""
    kinds = {type(matrix) for matrix in matrices}
    if len(kinds) > 1:
        return Int8Matrix.of(torch.cat([matrix.float() for matrix in matrices]))
    parts = zip(*(matrix.tensors("").values() for matrix in matrices), strict=True)
    return kinds.pop()(*(torch.cat(tensors) for tensors in parts))
