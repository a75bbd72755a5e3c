"""A pass of the compiler over the products of a step: they take as long as weights are read.

Those of one row are computed by our own kernel (model/row_kernel.py), which also does what stands
around them: the norm of the row, the gate, the sum with the residual stream. Those of more rows are
cuBLAS's, which is several times as slow where a vocabulary is no multiple of 8, as GPT-2's 50,257:
there the transposed product is taken, whose rows are aligned.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

from qkv.model import row_attention

ALIGNED = 8  # outputs of a product; cuBLAS is fast with multiples of it
aten = torch.ops.aten
_CONVERT = torch.ops.prims.convert_element_type.default
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_ADDS = (aten.add.Tensor, aten.add.Scalar)


class RowProducts(CustomGraphPass):
    """Replaces products by ones that read the weights faster, also in 8 bits."""

    def __call__(self, graph: Graph) -> None:
        """Change a graph that is being compiled."""
        if not row_attention.is_available():
            return
        for target in (aten.mm.default, aten.addmm.default):
            for node in graph.find_nodes(op="call_function", target=target):
                if not node.kwargs:
                    _replace(node)

    def uuid(self) -> str:
        """Name this version of the pass in the cache on disk."""
        return "qkv.RowProducts 3"


def _replace(product: Any) -> None:
    *biases, row, matrix = product.args
    bias = biases[0] if biases else None
    weight = _weight(matrix)
    if weight is None:
        return
    if row.meta["val"].shape[0] == 1:
        _multiply_row(product, row, weight, bias)
    elif weight.meta["val"].shape[0] % ALIGNED and weight is matrix.args[0]:
        with product.graph.inserting_before(product):
            columns = _call(aten.permute.default, row, [1, 0])
            found = _call(aten.permute.default, _call(aten.mm.default, weight, columns), [1, 0])
            found = found if bias is None else _call(aten.add.Tensor, found, bias)
        product.replace_all_uses_with(found)
        _erase(product)


def _multiply_row(product: Node, row: Node, weight: Any, bias: Any) -> None:
    """Replace a product of one row, and what the kernel can do before and after it."""
    last, scale, added, gated = product, None, bias, False
    gain, epsilon = None, 0.0
    if bias is None:
        if scaled := _scaled(last):
            last, scale = scaled
        if gate := _gated(last):
            last, gated = gate, True
        elif total := _sum(last):
            last, added = total
    if normed := _normed(row):
        row, gain, epsilon = normed
    size = weight.meta["val"].shape[1]
    with last.graph.inserting_before(last):
        row = _call(aten.reshape.default, row, [1, size])
        if added is not None:
            added = _call(aten.reshape.default, added, [-1])
        multiply = torch.ops.qkv.multiply_row.default
        found = _call(multiply, row, weight, scale, gain, epsilon, added, gated)
        found = _call(aten.reshape.default, found, list(last.meta["val"].shape))
    last.replace_all_uses_with(found)
    _erase(last)


def _call(target: Any, *arguments: Any) -> Node:
    """Add a call to the graph where it is being changed, with the shape of its result."""
    [graph] = {argument.graph for argument in arguments if isinstance(argument, Node)}
    node: Node = graph.call_function(target, arguments)
    node.meta["val"] = target(*(x.meta["val"] if isinstance(x, Node) else x for x in arguments))
    return node


def _erase(node: Node) -> None:
    """Remove a node that nothing reads, and what was computed for it alone."""
    if node.op == "call_function" and not node.users:
        inputs = node.all_input_nodes
        node.graph.erase_node(node)
        for each in inputs:
            _erase(each)


def _weight(matrix: Any) -> Any:
    """Return the weight (N, K) whose transpose is multiplied, in the type that it is stored in."""
    if not _is(matrix, aten.permute.default, aten.t.default):
        return None
    weight = matrix.args[0]
    stored = _unconverted(weight)
    weight = stored if stored.meta["val"].dtype == torch.int8 else weight
    return weight if weight.meta["val"].is_contiguous() else None


def _scaled(product: Node) -> tuple[Any, Any] | None:
    """Return the node that scales each output of a product, and the scales.

    Nothing else may read the product, and the scales must be stored, as those of int8 weights are.
    """
    view = _view(product)
    scaled = _only_user(view)
    if not _is(scaled, aten.mul.Tensor) or scaled.args[1] is not view:
        return None
    scale = _unconverted(scaled.args[0])
    if not isinstance(scale, Node):
        return None
    is_vector = scale.meta["val"].shape == product.meta["val"].shape[1:]
    is_stored = scale.op in ("placeholder", "get_attr")
    return (scaled, scale) if is_vector and is_stored and _same_type(scaled, product) else None


def _gated(outputs: Node) -> Any:
    """Return silu(first half of the outputs) times the second half, if all that is read is this."""
    halves = _only_user(_view(outputs))
    if not _is(halves, aten.split.Tensor) or len(halves.users) != 2:
        return None
    gate, inner = sorted(halves.users, key=lambda half: half.args[1])
    found = _only_user(inner)
    if not _is(found, aten.mul.Tensor):
        return None
    silu = _unconverted(_other(found, inner))
    if not _is(silu, aten.div.Tensor):  # g / (1 + exp(-g))
        return None
    exact, below = silu.args
    if not _is(below, *_ADDS) or not _is(below.args[0], aten.exp.default) or below.args[1] != 1:
        return None
    negative = below.args[0].args[0]
    is_silu = _is(negative, aten.neg.default) and negative.args[0] is exact
    is_silu = is_silu and _unconverted(exact) is gate and set(exact.users) == {silu, negative}
    is_all = exact is gate or len(gate.users) == 1
    return found if is_silu and is_all and _same_type(found, outputs) else None


def _sum(outputs: Node) -> tuple[Any, Any] | None:
    """Return the node that adds something to each output, and what it adds."""
    view = _view(outputs)
    found = _only_user(view)
    if not _is(found, aten.add.Tensor) or found.kwargs:
        return None
    other = _other(found, view)
    is_vector = isinstance(other, Node) and other.meta["val"].numel() == outputs.meta["val"].numel()
    return (found, other) if is_vector and _same_type(found, outputs) else None


def _normed(row: Any) -> tuple[Any, Any, float] | None:
    """Return what RMSNorm makes a row of, x / √(mean(x²) + ε) · gain, with the gain and ε."""
    weighted = row
    while _is(weighted, _CONVERT, *_VIEWS):
        weighted = weighted.args[0]
    if not _is(weighted, aten.mul.Tensor):
        return None
    normed, gain = weighted.args
    if not _is(normed, aten.mul.Tensor) or not _is(normed.args[1], aten.rsqrt.default):
        return None
    exact, inverse = normed.args
    moment = inverse.args[0]
    if not _is(moment, *_ADDS) or not _is(moment.args[0], aten.mean.dim):
        return None
    mean, epsilon = moment.args
    if not _is(mean.args[0], aten.pow.Tensor_Scalar) or mean.args[0].args != (exact, 2):
        return None
    x = _unconverted(exact)
    is_gain = isinstance(gain, Node) and gain.meta["val"].shape == row.meta["val"].shape[1:]
    return (x, gain, epsilon) if is_gain and _same_type(x, row) else None


def _is(node: Any, *targets: Any) -> bool:
    return isinstance(node, Node) and node.target in targets


def _other(node: Node, one: Node) -> Any:
    """Return the argument of two that is not this one; itself, where both are."""
    first, second = node.args
    return second if first is one else first


def _unconverted(node: Any) -> Any:
    """Return what a node converts to another type, or itself."""
    return node.args[0] if _is(node, _CONVERT) else node


def _view(node: Node) -> Any:
    """Return a node of three dimensions, or the view that alone reads one of two."""
    if node.meta["val"].dim() > 2:
        return node
    view = _only_user(node)
    return view if _is(view, *_VIEWS) else None


def _only_user(node: Node | None) -> Any:
    return next(iter(node.users)) if node is not None and len(node.users) == 1 else None


def _same_type(one: Node, two: Node) -> bool:
    return bool(one.meta["val"].dtype == two.meta["val"].dtype)
