"""A pass of the compiler: products of one row by our own kernel (model/row_kernel.py)."""

from __future__ import annotations

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

from qkv.model import row_attention


class RowProducts(CustomGraphPass):
    """Replaces products of one row by a kernel that reads the weights faster, also in 8 bits."""

    def __call__(self, graph: Graph) -> None:
        """Change a graph that is being compiled."""
        if not row_attention.is_available():
            return
        aten = torch.ops.aten
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
        if row.meta["val"].shape[0] != 1 or weight is None:
            return
        with graph.inserting_before(node):
            found = graph.call_function(torch.ops.qkv.multiply_row.default, (row, weight))
            found.meta.update(node.meta)
            if bias is not None:
                found = graph.call_function(torch.ops.aten.add.Tensor, (found, bias))
                found.meta.update(node.meta)
        node.replace_all_uses_with(found)
        graph.erase_node(node)

    def uuid(self) -> str:
        """Name this version of the pass in the cache on disk."""
        return "qkv.RowProducts 1"


def _weight(matrix: Node) -> Node | None:
    """Return the weight (N, K) whose transpose is multiplied, in the type that it is stored in."""
    aten = torch.ops.aten
    if matrix.target not in (aten.permute.default, aten.t.default):
        return None
    weight = matrix.args[0]
    assert isinstance(weight, Node)
    if weight.target is torch.ops.prims.convert_element_type.default:
        before = weight.args[0]
        assert isinstance(before, Node)
        weight = before if before.meta["val"].dtype == torch.int8 else weight
    return weight if weight.meta["val"].is_contiguous() else None
