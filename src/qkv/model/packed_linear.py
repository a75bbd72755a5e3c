"""Linear layers in float32 that also hold their matrix as a CPU's kernel reads it fastest.

The plain matrix stays: it is what is saved, trained and inspected. So faster products cost a second
copy of the weights in memory, which only models of moderate size get.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

MOST_BYTES = 2**30  # of matrices; those of larger models are not held twice
M = TypeVar("M", bound=nn.Module)


class PackedLinear(nn.Linear):
    """x·Wᵀ + b, by the packed matrix while nothing needs gradients and W has not changed."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=False, device="meta")
        self.weight, self.bias = plain.weight, plain.bias
        self._packed: Tensor | None = torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach())
        self._packed_from = _state(plain.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) to (…, out)."""
        if self._packed is None or not self._serves(x):
            return super().forward(x)
        product: Tensor = _kernel()(x, self._packed, self.bias, "none", [], "")
        return product

    def _serves(self, x: Tensor) -> bool:
        plain = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
        plain = plain or torch.compiler.is_compiling() or x.dtype != torch.float32
        return not plain and _state(self.weight) == self._packed_from

    def _apply(self, fn: Any, recurse: bool = True) -> PackedLinear:
        """Move or convert the plain matrix; the packed one is of no more use."""
        self._packed = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave the packed matrix out of copies."""
        return {**self.__dict__, "_packed": None}


def pack_products(model: M) -> M:
    """Pack the linear layers of a model in float32 on a CPU that has the kernel."""
    plain = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and child.weight.dtype == torch.float32
    ]
    if _has_kernel() and sum(child.weight.nbytes for _, _, child in plain) <= MOST_BYTES:
        for parent, name, child in plain:
            setattr(parent, name, PackedLinear(child))
    return model


@cache
def _has_kernel() -> bool:
    has_vectors = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return has_vectors and torch.backends.mkldnn.is_available()


@cache
def _kernel() -> Any:
    """Return torch's product by a packed matrix, called without a look through its arguments."""
    return torch.ops.mkldnn._linear_pointwise.default._op


def _state(weight: Tensor) -> tuple[int, int]:
    """Where a weight is in memory, and how often it was changed in place."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version
