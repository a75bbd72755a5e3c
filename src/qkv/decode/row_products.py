"""A pass of the compiler over the products of a step: they take as long as weights are read.

Those of one row are computed by our own kernel (model/row_kernel.py). Those of more rows are
cuBLAS's, which is several times as slow where a vocabulary is no multiple of 8, as GPT-2's 50,257:
there the transposed product is taken, whose rows are aligned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

from qkv.model import row_attention

ALIGNED = 8  # outputs of a product; cuBLAS is fast with multiples of it
aten = torch.ops.aten
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


class RowProducts(CustomGraphPass):
    """Replaces products by ones that read the weights faster, also in 8 bits."""

    def __call__(self, graph: Graph) -> None:
        """Change a graph that is being compiled."""
        if not row_attention.is_available():
            return
        for node in graph.find_nodes(op="call_function", target=aten.mm.default):
            self._replace(graph, node, *node.args)
        for node in graph.find_nodes(op="call_function", target=aten.addmm.default):
            if not node.kwargs:
                bias, row, matrix = node.args
                self._replace(graph, node, row, matrix, bias)

    def _replace(
        self, graph: Graph, node: Node, row: Node, matrix: Node, bias: Node | None = None
    ) -> None:
        weight = _weight(matrix)
        if weight is None:
            return
        with graph.inserting_before(node):
            if row.meta["val"].shape[0] == 1:
                scaled = _scaled(node) if bias is None else None
                scale = None if scaled is None else scaled[1]
                found = _call(torch.ops.qkv.multiply_row.default, row, weight, scale)
            elif weight.meta["val"].shape[0] % ALIGNED and weight is matrix.args[0]:
                scaled = None
                columns = _call(aten.permute.default, row, [1, 0])
                found = _call(aten.permute.default, _call(aten.mm.default, weight, columns), [1, 0])
            else:
                return
            if bias is not None:
                found = _call(aten.add.Tensor, found, bias)
        node.replace_all_uses_with(found)
        graph.erase_node(node)
        if scaled is not None:
            scaling, _ = scaled
            [view] = found.users
            scaling.replace_all_uses_with(view)
            graph.erase_node(scaling)

    def uuid(self) -> str:
        """Name this version of the pass in the cache on disk."""
        return "qkv.RowProducts 2"


def _call(target: Any, *arguments: Any) -> Node:
    """Add a call to the graph where it is being changed, with the shape of its result."""
    [graph] = {argument.graph for argument in arguments if isinstance(argument, Node)}
    node: Node = graph.call_function(target, arguments)
    node.meta["val"] = target(*(x.meta["val"] if isinstance(x, Node) else x for x in arguments))
    return node


def _weight(matrix: Node) -> Node | None:
    """Return the weight (N, K) whose transpose is multiplied, in the type that it is stored in."""
    if matrix.target not in (aten.permute.default, aten.t.default):
        return None
    weight = matrix.args[0]
    assert isinstance(weight, Node)
    if weight.target is torch.ops.prims.convert_element_type.default:
        before = weight.args[0]
        assert isinstance(before, Node)
        weight = before if before.meta["val"].dtype == torch.int8 else weight
    return weight if weight.meta["val"].is_contiguous() else None


def _scaled(product: Node) -> tuple[Node, Node] | None:
    """Return the node that scales each output of a product, and the scales.

    Nothing else may read the product, and the scales must be stored, as those of int8 weights are.
    """
    view = _only(product.users)
    scaled = None if view is None or view.target not in _VIEWS else _only(view.users)
    if scaled is None or scaled.target is not aten.mul.Tensor:
        return None
    scale, other = scaled.args
    if other is not view or not isinstance(scale, Node):
        return None
    if scale.target is torch.ops.prims.convert_element_type.default:
        before = scale.args[0]
        assert isinstance(before, Node)
        scale = before
    is_vector = scale.meta["val"].shape == product.meta["val"].shape[1:]
    keeps_dtype = scaled.meta["val"].dtype == product.meta["val"].dtype
    is_stored = scale.op in ("placeholder", "get_attr")
    return (scaled, scale) if is_vector and keeps_dtype and is_stored else None


def _only(users: Mapping[Node, None]) -> Node | None:
    return next(iter(users)) if len(users) == 1 else None
