"""Walking over graphs and everything nested in them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir


def nodes_below(root: ir.Graph | ir.Function | ir.GraphView) -> Iterator[ir.Node]:
    """Yield the nodes of `root` and of the subgraphs in it, in order, holder first."""
    return ir.traversal.RecursiveGraphIterator(root)


def roots(model: ir.Model) -> Iterator[ir.Graph | ir.Function]:
    """Yield the main graph, then each model-local function."""
    yield model.graph
    yield from model.functions.values()
