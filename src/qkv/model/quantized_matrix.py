"""A matrix as integers and their scales: what a file stores and a quantised layer computes with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = 127  # of the integers in 8 bits
SCALE = "_scale"  # after a weight's name: the name of its scales in a file


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

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return what a file holds of a weight of this name."""
        return {name: self.values, name + SCALE: self.scale}

    def to(self, device: torch.device) -> Int8Matrix:
        """Return the matrix on another device."""
        return Int8Matrix(self.values.to(device), self.scale.to(device))

    def float(self) -> Tensor:
        """Return the matrix in float32, (out, in)."""
        return self.values.float() * self.scale[:, None]
