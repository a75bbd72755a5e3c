"""Weights in 8 bits: a quarter of float32's size in a file, and integer products on a CPU.

A matrix is stored as integers from -127 to 127 and a scale for each output (symmetric, per
channel). On an x86 CPU, the input is rounded to integers too, each row by its own largest value, so
that a row's result does not depend on its neighbours. Elsewhere the integers are multiplied as
floats.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model.families import Embedding
from qkv.model.feed_forward import FeedForward

LARGEST = 127  # of the integers


@dataclass(frozen=True)
class Int8Matrix:
    """A matrix (out, in) as integers, with the scale of each row."""

    values: Tensor  # (out, in) int8
    scale: Tensor  # (out,) float32

    @classmethod
    def of(cls, weight: Tensor) -> Int8Matrix:
        """Round a matrix; its largest value in each row becomes ±127."""
        weight = weight.float()
        scale = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
        return cls((weight / scale[:, None]).round_().to(torch.int8), scale)

    def float(self) -> Tensor:
        """Return the matrix in float32, (out, in)."""
        return self.values.float() * self.scale[:, None]


class _Int8(nn.Module):
    """A module around one matrix in 8 bits."""

    values: Tensor
    scale: Tensor

    def __init__(self, matrix: Int8Matrix) -> None:
        super().__init__()
        self.register_buffer("values", matrix.values, persistent=False)
        self.register_buffer("scale", matrix.scale, persistent=False)

    @property
    def matrix(self) -> Int8Matrix:
        """The integers and their scales."""
        return Int8Matrix(self.values, self.scale)

    @property
    def weight(self) -> Tensor:
        """The matrix in float32, (out, in)."""
        return self.matrix.float()


class Int8Linear(_Int8):
    """x·Wᵀ + b with W in 8 bits."""

    def __init__(
        self, matrix: Int8Matrix, bias: nn.Parameter | None = None, nonnegative: bool = False
    ) -> None:
        super().__init__(matrix)
        self.out_features, self.in_features = matrix.values.shape
        self.bias = bias
        # An input that is never negative (after ReLU) needs no integers for negative numbers.
        self.nonnegative = nonnegative
        self._packed: Any = None

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) to (…, out)."""
        if x.is_cuda or not _has_kernel():
            product = F.linear(x, self.values.to(x.dtype)) * self.scale.to(x.dtype)
            return product if self.bias is None else product + self.bias.to(x.dtype)
        rows = x.reshape(-1, self.in_features).float()
        largest = rows.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        steps, zero = _integers(self.nonnegative)
        product = _kernel()(rows / largest, 1 / steps, zero, self._pack())
        if self.bias is None:
            product = product.mul_(largest)
        else:
            product = torch.addcmul(self.bias, product, largest)
        return product.view(*x.shape[:-1], self.out_features).to(x.dtype)

    def _pack(self) -> Any:
        """Lay the integers out as the kernel wants them, once."""
        if self._packed is None:
            zeros = torch.zeros(self.out_features, dtype=torch.int64)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that torch's quantised tensors are deprecated
                tensor = torch._make_per_channel_quantized_tensor(
                    self.values, self.scale.double(), zeros, 0
                )
                self._packed = torch.ops.quantized.linear_prepack(tensor, None)
        return self._packed


class Int8Embedding(_Int8):
    """Rows of a matrix in 8 bits, by token."""

    def forward(self, tokens: Tensor) -> Tensor:
        """(…) to (…, D)."""
        return self.values[tokens].float() * self.scale[tokens][..., None]


def int8_matrices(model: nn.Module) -> dict[str, Int8Matrix]:
    """Return the matrices of a model that are in 8 bits by the names of their weights.

    One that is shared has its first name alone, as in `named_parameters`.
    """
    modules = ((name, x) for name, x in model.named_modules() if isinstance(x, _Int8))
    first: dict[int, tuple[str, Int8Matrix]] = {}
    for name, module in modules:
        first.setdefault(module.values.data_ptr(), (f"{name}.weight", module.matrix))
    return dict(first.values())


def to_int8(model: nn.Module, matrix_of: Callable[[str], Int8Matrix]) -> None:
    """Replace linear layers and embeddings of tokens by such in 8 bits.

    `matrix_of` gives the integers of a weight by its name; a weight that is shared is asked for
    once. Biases, norms and tables of positions stay as they are.
    """
    matrices: dict[int, Int8Matrix] = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    def matrix(weight: Tensor) -> Int8Matrix:
        if id(weight) not in matrices:
            matrices[id(weight)] = matrix_of(names[id(weight)])
        return matrices[id(weight)]

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                nonnegative = name == "outer" and _has_relu(module)
                setattr(module, name, Int8Linear(matrix(child.weight), child.bias, nonnegative))
            elif isinstance(module, Embedding):
                assert isinstance(child, nn.Embedding)
                setattr(module, name, Int8Embedding(matrix(child.weight)))


def _has_relu(module: nn.Module) -> bool:
    return isinstance(module, FeedForward) and module.activation is F.relu and not module.gated


def _integers(nonnegative: bool) -> tuple[int, int]:
    """Integers up to the largest input, and the one that stands for 0.

    Without VNNI instructions, pairs of products are added in 16 bits: inputs get 7 bits, so that
    the sums cannot overflow.
    """
    most = 255 if _has_vnni() else 127
    return (most, 0) if nonnegative else (most // 2, most // 2 + 1)


@cache
def _has_vnni() -> bool:
    check = getattr(torch.cpu, "_is_vnni_supported", None)
    return bool(check and check())


@cache
def _has_kernel() -> bool:
    return torch.backends.quantized.engine in ("x86", "fbgemm")


def _kernel() -> Callable[..., Tensor]:
    return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
