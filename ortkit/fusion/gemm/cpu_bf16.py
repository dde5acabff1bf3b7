"""Regions of products in bfloat16: the product, what takes its weight apart, and what follows."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortkit.fusion.regions.access import access_of
from ortkit.fusion.regions.bf16_operands import has_one_use, producer_of, unpacked_matrix, widens
from ortkit.fusion.regions.cost_model import Prediction, nominal
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.search import Search
from ortkit.rewrite.scope import Scope

KIND = "bf16_product"

#: Longest epilogue of a matmul that is tried.
_LONGEST = 16
#: Of a multiply-add on one thread: ONNX Runtime's float32 at 105 GFLOP/s, ours at 1,200 with AMX
#: tiles (server processor with both, 2026-11).
_RUNTIME_NS, _OURS_NS = 2 / 105, 2 / 1200


def family(search: Search) -> Iterator[Candidate]:
    """Yield a candidate for each product of one graph with a packed weight.

    Only the end of such a region is read by others, and it reads nothing that depends on it.
    """
    scope = search.scope
    for node in search.nodes():
        if node.op_type != "MatMul" or node.domain:
            continue
        before = _before(scope, node)
        if before is None or not search.taken.isdisjoint(before):
            continue
        epilogue = epilogue_nodes(scope, node, search.taken)
        lengths = range(len(epilogue), -1, -1)
        found = search.first(([*before, node, *epilogue[:count]] for count in lengths), KIND)
        if not isinstance(found, Candidate):
            found = search.take(*found, _predict(scope, node))
        yield found


def _before(scope: Scope, product: ir.Node) -> list[ir.Node] | None:
    """Return the nodes that widen both factors, in order; None if the weight is not packed."""
    wide = producer_of(product.inputs[0])
    if scope.shapes.shape(product.outputs[0]) is None:
        return None
    if wide is None or not widens(scope, wide) or not has_one_use(wide):
        return None
    weight = unpacked_matrix(scope, product.inputs[1])
    return None if weight is None else [wide, *weight.nodes]


def epilogue_nodes(scope: Scope, product: ir.Node, excluded: set[ir.Node]) -> list[ir.Node]:
    """Return the epilogue of a matmul: pointwise nodes, each the only consumer of the one before.

    A last one may be read by others as well.
    """
    found: list[ir.Node] = []
    node, graph = product, product.graph
    shape = scope.shapes.shape(product.outputs[0])
    while len(found) < _LONGEST and has_one_use(node):
        (use,) = node.outputs[0].uses()
        reader = use.node
        if reader.graph is not graph or reader in excluded or len(reader.outputs) != 1:
            break
        if access_of(reader) != "elementwise" or scope.shapes.shape(reader.outputs[0]) != shape:
            break
        found.append(reader)
        node = reader
    return found


def _predict(scope: Scope, product: ir.Node) -> Prediction:
    """Return what the product alone takes; sizes that are not known are nominal."""
    shape, weight = (scope.shapes.shape(value) for value in product.inputs if value is not None)
    assert shape is not None and weight is not None
    count = 1.0
    for size in (*shape, weight[-1]):
        count *= nominal(size)
    return Prediction(count * _RUNTIME_NS, count * _OURS_NS)
