"""Layers with quantised weights: integers in memory, and integer products on a CPU.

In 8 bits, a matrix is integers from -127 to 127 and a scale for each output (symmetric, per
channel). On an x86 CPU, the input is rounded to integers too, each row by its own largest value, so
that a row's result does not depend on its neighbours. Elsewhere the integers are multiplied as
floats.

A CPU's kernels read matrices in a layout of their own. A linear layer keeps that layout alone, and
an embedding the plain rows, so an output matrix that is tied to an embedding is stored twice. The
layout for 8 bits pads inputs to multiples of 512: 576 take the memory of 1,024.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model.families import Embedding
from qkv.model.feed_forward import FeedForward
from qkv.model.quantized_matrix import Int8Matrix


class Quantized(nn.Module):
    """A layer around one quantised matrix, which knows its weight's name in the model."""

    weight_name: str = ""

    @property
    def matrix(self) -> Int8Matrix:
        """The integers and their scales."""
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        """The matrix in float32, (out, in)."""
        return self.matrix.float()


class Int8Linear(Quantized):
    """x·Wᵀ + b with W in 8 bits."""

    values: Tensor | None  # (out, in); None where the kernel's own layout replaces it
    scale: Tensor  # (out,) float32

    def __init__(
        self, matrix: Int8Matrix, bias: nn.Parameter | None = None, nonnegative: bool = False
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = matrix.values.shape
        self.bias = bias
        # An input that is never negative (after ReLU) needs no integers for negative numbers.
        self.nonnegative = nonnegative
        self.register_buffer("values", matrix.values, persistent=False)
        self.register_buffer("scale", matrix.scale, persistent=False)
        self._packed: Any = None
        self._pack()

    @property
    def matrix(self) -> Int8Matrix:
        """The integers and their scales, unpacked where the kernel holds them."""
        if self.values is not None:
            return Int8Matrix(self.values, self.scale)
        weight, _ = torch.ops.quantized.linear_unpack(self._packed)
        return Int8Matrix(weight.int_repr(), self.scale)

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) to (…, out)."""
        if self.values is not None:
            product = F.linear(x, self.values.to(x.dtype)) * self.scale.to(x.dtype)
            return product if self.bias is None else product + self.bias.to(x.dtype)
        rows = x.reshape(-1, self.in_features).float()
        largest = rows.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        steps, zero = _integers(self.nonnegative)
        product = _kernel()(rows / largest, 1 / steps, zero, self._packed)
        if self.bias is None:
            product = product.mul_(largest)
        else:
            product = torch.addcmul(self.bias, product, largest)
        return product.view(*x.shape[:-1], self.out_features).to(x.dtype)

    def _pack(self) -> None:
        """Lay the integers out as the CPU's kernel wants them, and drop the plain ones."""
        if self.values is None or self.values.device.type != "cpu" or not _has_kernel():
            return
        zeros = torch.zeros(self.out_features, dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch's quantised tensors are deprecated
            tensor = torch._make_per_channel_quantized_tensor(
                self.values, self.scale.double(), zeros, 0
            )
            self._packed = torch.ops.quantized.linear_prepack(tensor, None)
        self.values = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Int8Linear:
        """Move to another device; scales stay in float32 whatever the model's floats become."""
        scale = self.scale
        device = fn(scale[:0]).device
        if self._packed is not None and device.type != "cpu":
            self.values, self._packed = self.matrix.values, None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.scale = scale.to(device)
        self._pack()
        return self


class Int8Embedding(Quantized):
    """Rows of a matrix in 8 bits, by token."""

    values: Tensor
    scale: Tensor
    empty: Tensor

    def __init__(self, matrix: Int8Matrix) -> None:
        super().__init__()
        self.register_buffer("values", matrix.values, persistent=False)
        self.register_buffer("scale", matrix.scale, persistent=False)
        # Follows the model's floats, so that its dtype is that of the output.
        self.register_buffer("empty", torch.empty(0, device=matrix.scale.device), persistent=False)

    @property
    def matrix(self) -> Int8Matrix:
        """The integers and their scales."""
        return Int8Matrix(self.values, self.scale)

    def forward(self, tokens: Tensor) -> Tensor:
        """(…) to (…, D)."""
        rows = self.values[tokens].float() * self.scale[tokens][..., None]
        return rows.to(self.empty.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Int8Embedding:
        """Move to another device; scales stay in float32 whatever the model's floats become."""
        scale = self.scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.scale = scale.to(self.values.device)
        return self


def quantized_matrices(model: nn.Module) -> dict[str, Int8Matrix]:
    """Return the quantised matrices of a model by the names of their weights.

    One that is shared has its first name alone, as in `named_parameters`.
    """
    modules = [module for module in model.modules() if isinstance(module, Quantized)]
    first: dict[str, Quantized] = {}
    for module in modules:
        first.setdefault(module.weight_name, module)
    return {name: module.matrix for name, module in first.items()}


def quantizable(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yield the linear layers and embeddings of tokens: each one's parent, name and self.

    Biases, norms and tables of positions stay as they are.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) or (
                isinstance(module, Embedding) and isinstance(child, nn.Embedding)
            ):
                yield module, name, child


def quantizable_names(model: nn.Module) -> set[str]:
    """Return the names of the weights that `quantize` replaces."""
    weights = {id(child.weight) for _, _, child in quantizable(model)}
    return {name for name, parameter in model.named_parameters() if id(parameter) in weights}


def quantize(
    model: nn.Module,
    matrix_of: Callable[[str], Int8Matrix | None],
    device: torch.device | None = None,
) -> None:
    """Replace linear layers and embeddings of tokens by quantised ones on a device.

    `matrix_of` gives the integers of a weight by its name, or nothing where it stays in floats; a
    weight that is shared is asked for once.
    """
    replaced = list(quantizable(model))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    uses = Counter(id(child.weight) for _, _, child in replaced)
    shared: dict[str, Int8Matrix | None] = {}  # any other is freed once its layer has packed it
    for module, name, child in replaced:
        weight_name = names[id(child.weight)]
        matrix = shared[weight_name] if weight_name in shared else matrix_of(weight_name)
        matrix = matrix.to(device) if matrix and device else matrix
        if uses[id(child.weight)] > 1:
            shared[weight_name] = matrix
        if matrix is not None:
            layer = _layer(module, name, child, matrix)
            layer.weight_name = weight_name
            setattr(module, name, layer)


def _layer(module: nn.Module, name: str, child: nn.Module, matrix: Int8Matrix) -> Quantized:
    if isinstance(child, nn.Embedding):
        return Int8Embedding(matrix)
    assert isinstance(child, nn.Linear)
    nonnegative = name == "outer" and _has_relu(module)
    return Int8Linear(matrix, child.bias, nonnegative)


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
