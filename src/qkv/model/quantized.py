"""Layers with quantised weights: integers in memory, and integer products on a CPU.

In 8 bits, a matrix is integers from -127 to 127 and a scale for each output (symmetric, per
channel). On an x86 CPU, the input is rounded to integers too, each row by its own largest value, so
that a row's result does not depend on its neighbours. A pre-norm model's residual stream may have a
few values far larger than the others, beside which such steps would round the rest to nothing:
there the input is a sum of two integers, the second of finer steps.

In 4 bits, each group of 32 inputs has a scale and an offset, and an x86 CPU rounds inputs and
outputs to bfloat16. Elsewhere than on an x86 CPU the integers become floats as they are multiplied.

A CPU's kernels read matrices in a layout of their own. A linear layer keeps that layout alone, and
an embedding the plain rows, so an output matrix that is tied to an embedding is stored twice. The
layout for 8 bits pads inputs to multiples of 512: 576 take the memory of 1,024.
"""

from __future__ import annotations

import io
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model.experts import Router
from qkv.model.families import Embedding, Model
from qkv.model.feed_forward import FeedForward
from qkv.model.quantized_matrix import (
    GROUP,
    MIDDLE,
    Int4Matrix,
    Int8Matrix,
    QuantizedMatrix,
)

OUTPUT_TILE = 16  # the kernel for 4 bits wants multiples of it
_CPU = torch.device("cpu")


class Quantized(nn.Module):
    """A layer around one quantised matrix, whose tensors are its buffers."""

    weight_name: str = ""  # of its weight in the model

    def __init__(self, matrix: QuantizedMatrix) -> None:
        super().__init__()
        self._kind = type(matrix)
        self._names = tuple(field.name for field in fields(matrix))
        self._hold(matrix)

    @property
    def matrix(self) -> QuantizedMatrix:
        """The integers and their scales."""
        return self._held()

    @property
    def weight(self) -> Tensor:
        """The matrix in float32, (out, in)."""
        return self.matrix.float()

    def _held(self) -> QuantizedMatrix:
        return self._kind(*[getattr(self, name) for name in self._names])

    def _hold(self, matrix: QuantizedMatrix | None) -> None:
        for name in self._names:
            tensor = None if matrix is None else getattr(matrix, name)
            self.register_buffer(name, tensor, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Quantized:
        """Move to another device; scales keep their dtype whatever the model's floats become."""
        device = fn(torch.empty(0, device=self.device)).device
        self._move(device)
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name in self._names:
            tensor = before[name]
            self._buffers[name] = None if tensor is None else tensor.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Where the matrix is."""
        return next((x.device for x in self._buffers.values() if x is not None), _CPU)

    def _move(self, device: torch.device) -> None:
        """Prepare to be moved to a device."""


class QuantizedEmbedding(Quantized):
    """Rows of a quantised matrix, by token."""

    empty: Tensor

    def __init__(self, matrix: QuantizedMatrix) -> None:
        super().__init__(matrix)
        # Follows the model's floats, so that its dtype is that of the output.
        self.register_buffer("empty", torch.empty(0, device=matrix.scale.device), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(…) to (…, D)."""
        return self.matrix[tokens].float(self.empty.dtype)


class QuantizedLinear(Quantized, ABC):
    """x·Wᵀ + b with a quantised W."""

    bias: nn.Parameter | None

    def __init__(self, matrix: QuantizedMatrix, bias: nn.Parameter | None = None) -> None:
        super().__init__(matrix)
        self.out_features, self.in_features = matrix.shape
        self.bias = bias
        self._packed: Any = None  # in the layout of a CPU's kernel; it replaces the buffers
        self._may_pack = True
        self._pack()

    @property
    def matrix(self) -> QuantizedMatrix:
        """The integers and their scales, unpacked where the kernel holds them."""
        return self._held() if self._packed is None else self._unpack()

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) to (…, out); the kernel knows no gradients, so these need the floats."""
        if x.requires_grad and torch.is_grad_enabled():
            device = x.device.type
            x = x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
            product = frozen_product(x, self._floats)
            return product if self.bias is None else product + self.bias.to(x.dtype)
        if self._packed is None:
            return self._product(x)
        return self._packed_product(x)

    def _floats(self, dtype: torch.dtype) -> Tensor:
        return self.matrix.float(dtype)

    def _product(self, x: Tensor) -> Tensor:
        """Multiply by the matrix as floats; a compiler makes these of the integers as it reads."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self._held().float(x.dtype), bias)

    @abstractmethod
    def _packed_product(self, x: Tensor) -> Tensor:
        """(…, in) to (…, out) by the packed matrix, in the kernel's precision."""

    def _pack(self) -> None:
        """Lay the integers out as the CPU's kernel wants them, and drop the plain ones."""
        if self._may_pack and self.device.type == "cpu" and self._has_kernel():
            self._packed = self._pack_matrix()
            self._hold(None)

    def keep_plain(self) -> None:
        """Hold the plain integers from now on, of which floats for gradients are made quickly."""
        self._may_pack = False
        if self._packed is not None:
            self._hold(self._unpack())
            self._packed = None

    @abstractmethod
    def _has_kernel(self) -> bool:
        """Whether this CPU has a fast kernel for it."""

    @abstractmethod
    def _pack_matrix(self) -> Any:
        """Lay the integers out as the kernel wants them."""

    @abstractmethod
    def _unpack(self) -> QuantizedMatrix:
        """Return the integers and scales that were packed."""

    def _move(self, device: torch.device) -> None:
        if self._packed is not None and device.type != "cpu":
            self._hold(self._unpack())
            self._packed = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the matrix by value: of a packed one, torch would send memory that it frees."""
        state = self.__dict__.copy()
        if self._packed is not None:
            torch.save(self._unpack().tensors(""), stored := io.BytesIO())
            state["_packed"] = stored.getvalue()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over another layer's state, with a packed matrix of its own."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if isinstance(self._packed, bytes):
            self._hold(self._kind(*torch.load(io.BytesIO(self._packed)).values()))
            self._packed = None
            self._pack()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedLinear:
        super()._apply(fn, recurse)
        if self._packed is None:
            self._pack()
        return self


class _FrozenProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_as: Callable[[torch.dtype], Tensor]) -> Tensor:
        ctx.weight_as = weight_as
        return F.linear(x, weight_as(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ ctx.weight_as(grad.dtype), None


def frozen_product(x: Tensor, weight_as: Callable[[torch.dtype], Tensor]) -> Tensor:
    """x·Wᵀ for a W that does not learn, made in a dtype by `weight_as`.

    The backward pass makes it again, so that it is not kept beside what it is made of.
    """
    product: Tensor = _FrozenProduct.apply(x, weight_as)  # type: ignore[no-untyped-call]
    return product


class Int8Linear(QuantizedLinear):
    """x·Wᵀ + b with W in 8 bits."""

    values: Tensor
    scale: Tensor

    def __init__(
        self,
        matrix: Int8Matrix,
        bias: nn.Parameter | None = None,
        nonnegative: bool = False,
        precise: bool = False,
    ) -> None:
        super().__init__(matrix, bias)
        # An input that is never negative (after ReLU) needs no integers for negative numbers.
        self.nonnegative = nonnegative and not precise
        self.precise = precise  # multiply what rounding leaves of an input too, as a second row
        self._steps, self._zero = _input_integers(self.nonnegative)

    def _product(self, x: Tensor) -> Tensor:
        # In the other order, Inductor of torch 2.11 takes it for a kernel that it has not.
        product = self.scale.to(x.dtype) * F.linear(x, self.values.to(x.dtype))
        return product if self.bias is None else product + self.bias.to(x.dtype)

    def _packed_product(self, x: Tensor) -> Tensor:
        rows = x if x.dtype == torch.float32 else x.float()
        sizes = rows if self.nonnegative else rows.abs()
        size = sizes.amax(dim=-1, keepdim=True)  # where 0, the product is multiplied by 0
        kernel, steps = _kernel(), self._steps
        if self.precise:
            rows = rows * (steps / size)
            whole = rows.round()
            both = torch.stack((whole, rows.sub_(whole).mul_(2 * steps)))
            product, rest = kernel(both, 1.0, self._zero, self._packed).unbind()
            product = torch.add(product, rest, alpha=0.5 / steps)
            size = size / steps
        else:
            product = kernel(rows / size, 1 / steps, self._zero, self._packed)
        bias = self.bias
        product = product.mul_(size) if bias is None else torch.addcmul(bias, product, size)
        return product if x.dtype == torch.float32 else product.to(x.dtype)

    def _has_kernel(self) -> bool:
        return torch.backends.quantized.engine in ("x86", "fbgemm")

    def _pack_matrix(self) -> Any:
        zeros = torch.zeros(self.out_features, dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch's quantised tensors are deprecated
            tensor = torch._make_per_channel_quantized_tensor(
                self.values, self.scale.double(), zeros, 0
            )
            return torch.ops.quantized.linear_prepack(tensor, None)

    def _unpack(self) -> Int8Matrix:
        weight, _ = torch.ops.quantized.linear_unpack(self._packed)
        return Int8Matrix(weight.int_repr(), weight.q_per_channel_scales().float())


class Int4Linear(QuantizedLinear):
    """x·Wᵀ + b with W in 4 bits; on a CPU, inputs and outputs are rounded to bfloat16."""

    def _packed_product(self, x: Tensor) -> Tensor:
        integers, scales = self._packed
        rows = x.reshape(-1, self.in_features).bfloat16()
        product = torch._weight_int4pack_mm_for_cpu(rows, integers, GROUP, scales)
        if self.out_features % OUTPUT_TILE:
            product = product[:, : self.out_features]
        product = product.to(x.dtype) if self.bias is None else product.float() + self.bias
        return product.view(*x.shape[:-1], self.out_features).to(x.dtype)

    def _has_kernel(self) -> bool:
        # torch multiplies 4 bits on any CPU, but has fast code for these alone.
        return torch.backends.cpu.get_cpu_capability().startswith("AVX")

    def _pack_matrix(self) -> tuple[Tensor, Tensor]:
        matrix = self.matrix
        assert isinstance(matrix, Int4Matrix)
        missing = -self.out_features % OUTPUT_TILE
        integers = F.pad(matrix.integers().int(), (0, 0, 0, missing))
        scales = torch.stack((matrix.scale, matrix.offset), dim=-1).transpose(0, 1)
        return (
            torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers, 1),
            F.pad(scales, (0, 0, 0, missing)).contiguous(),  # (in / 32, out, 2)
        )

    def _unpack(self) -> Int4Matrix:
        """Read the integers as a product with the identity, which bfloat16 holds exactly."""
        integers, scales = self._packed
        plain = torch.stack((torch.ones_like(scales[..., 0]), torch.zeros_like(scales[..., 0])), -1)
        identity = torch.eye(self.in_features, dtype=torch.bfloat16)
        steps = torch.ops.aten._weight_int4pack_mm_for_cpu(identity, integers, GROUP, plain)
        scale, offset = scales[:, : self.out_features].transpose(0, 1).contiguous().unbind(-1)
        values = steps.t()[: self.out_features] + MIDDLE
        return Int4Matrix.packed(values, scale.contiguous(), offset.contiguous())


def quantized_matrices(model: nn.Module) -> dict[str, QuantizedMatrix]:
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

    Biases, norms, tables of positions and routers, whose choices rounding would change, stay.
    """
    for module in list(model.modules()):
        if isinstance(module, Router):
            continue
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
    model: Model,
    matrix_of: Callable[[str], QuantizedMatrix | None],
    device: torch.device | None = None,
) -> None:
    """Replace linear layers and embeddings of tokens by quantised ones on a device.

    `matrix_of` gives the integers of a weight by its name, or nothing where it stays in floats; a
    weight that is shared is asked for once.
    """
    replaced = list(quantizable(model))
    precise = model.config.norm_position != "post"
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    uses = Counter(id(child.weight) for _, _, child in replaced)
    shared: dict[
        str, QuantizedMatrix | None
    ] = {}  # any other is freed once its layer has packed it
    for module, name, child in replaced:
        weight_name = names[id(child.weight)]
        matrix = shared[weight_name] if weight_name in shared else matrix_of(weight_name)
        matrix = matrix.to(device) if matrix and device else matrix
        if uses[id(child.weight)] > 1:
            shared[weight_name] = matrix
        if matrix is not None:
            layer = _layer(module, name, child, matrix, precise)
            layer.weight_name = weight_name
            setattr(module, name, layer)


def _layer(
    module: nn.Module, name: str, child: nn.Module, matrix: QuantizedMatrix, precise: bool
) -> Quantized:
    if isinstance(child, nn.Embedding):
        return QuantizedEmbedding(matrix)
    assert isinstance(child, nn.Linear)
    if isinstance(matrix, Int4Matrix):
        return Int4Linear(matrix, child.bias)
    nonnegative = name == "outer" and _has_relu(module)
    return Int8Linear(matrix, child.bias, nonnegative, precise)


def _has_relu(module: nn.Module) -> bool:
    return isinstance(module, FeedForward) and module.activation is F.relu and not module.gated


@cache
def _kernel() -> Callable[..., Tensor]:
    """Return torch's product of floats, rounded by a scale, and a packed matrix of 8 bits.

    It is called as cheaply as torch allows: `torch.ops` looks through arguments for fakes, and
    C++ asks a packed matrix whether it overrides torch's functions, which it answers by raising
    two exceptions, unless its class says no.
    """
    if not hasattr(torch.ScriptObject, "__torch_function__"):
        no_override = torch._C._disabled_torch_function_impl
        torch.ScriptObject.__torch_function__ = no_override  # type: ignore[attr-defined]
    kernel: Callable[..., Tensor] = (
        torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.op
    )
    return kernel


def _input_integers(nonnegative: bool) -> tuple[int, int]:
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
