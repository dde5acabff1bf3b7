"""Regions of attention: the node, and the biases and parts that its operands are made of.

Of operands that are rounded to bfloat16, for products in it, the roundings too, and that of the
result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

from ortkit.fusion.attention.cpu_cost import predict_attention
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.search import Search, alone, refused
from ortkit.kernels.tuning.calibration import load_calibration
from ortkit.rewrite.scope import Scope

_WIDENING = (ir.DataType.BFLOAT16, ir.DataType.FLOAT)
_ROUNDING = (ir.DataType.FLOAT, ir.DataType.BFLOAT16)


def family(search: Search) -> Iterator[Candidate]:
    """Yield a candidate for each attention of one graph.

    Nothing leaves such a region but its result: that it becomes one node changes nothing about the
    order of the others. What is rounded is always taken if there is a kernel.
    """
    scope, calibration = search.scope, load_calibration()
    for node in search.nodes():
        if node.op_type != "Attention" or node.domain:
            continue
        if not _is_known(scope, node):
            yield refused(alone("attention", node), "operands of unknown shape")
            continue
        found = search.first(_choices(scope, node, search.taken))
        if not isinstance(found, Candidate):
            region, signature = found
            prediction = predict_attention(scope, region, calibration)
            # Without a kernel rounding would cost, and gain nothing.
            is_rounded = any(each.op_type == "Cast" for each in region.nodes)
            settle = search.take if is_rounded else search.priced
            found = settle(region, signature, prediction)
        yield found


def _choices(
    scope: Scope, node: ir.Node, taken: Collection[ir.Node]
) -> Iterator[Sequence[ir.Node]]:
    """Yield the node with as much of what makes the operands as can be, then with less."""
    before = [each for each in _before(scope, node) if each not in taken]
    casts = [each for each in before if each.op_type == "Cast"]
    widening = [each for each in casts if each.outputs[0] in node.inputs]
    roundings = [each for each in _rounding_consumer(scope, node) if each not in taken]
    for some in (before, casts, widening):
        yield *some, node, *roundings
    yield (node,)


def _before(scope: Scope, node: ir.Node) -> list[ir.Node]:
    """Return what makes Q, K and V and is read nowhere else, in order.

    Splits, Adds of a bias, and Casts to bfloat16 and back.
    """
    inside = {node}
    found: list[ir.Node] = []
    pending = list(node.inputs[:3])
    while pending:
        value = pending.pop()
        producer = None if value is None else value.producer()
        if producer is None or producer in inside or producer.graph is not node.graph:
            continue
        if producer.domain or not _is_read_only_by(producer, inside):
            continue
        is_cast = _cast_of(scope, producer) in (_WIDENING, _ROUNDING)
        if producer.op_type == "Split" or is_cast or _is_bias(scope, producer):
            inside.add(producer)
            found.insert(0, producer)
            pending += producer.inputs[:2] if producer.op_type == "Add" else producer.inputs[:1]
    return found


def _is_read_only_by(producer: ir.Node, inside: set[ir.Node]) -> bool:
    return not any(value.is_graph_output() for value in producer.outputs) and all(
        use.node in inside for value in producer.outputs for use in value.uses()
    )


def _is_bias(scope: Scope, add: ir.Node) -> bool:
    """Say whether a constant row is added, and that ONNX Runtime does it in a pass of its own.

    Where all sizes are known it makes a Gemm of a MatMul and the bias after it.
    """
    if add.op_type != "Add":
        return False
    for rows, bias in (add.inputs, add.inputs[::-1]):
        if rows is None or bias is None or not scope.is_constant(bias):
            continue
        shape = scope.shapes.shape(rows)
        if scope.shapes.rank(bias) != 1 or shape is None:
            continue
        producer = rows.producer()
        is_product = producer is not None and producer.op_type == "MatMul"
        return not (is_product and all(isinstance(size, int) for size in shape))
    return False


def _cast_of(scope: Scope, node: ir.Node) -> tuple[ir.DataType | None, ir.DataType | None]:
    """Return between which types a node converts; nothing and nothing for others."""
    source = node.inputs[0] if node.op_type == "Cast" and not node.domain else None
    if source is None:
        return None, None
    return scope.shapes.dtype(source), scope.shapes.dtype(node.outputs[0])


def _rounding_consumer(scope: Scope, node: ir.Node) -> tuple[ir.Node, ...]:
    """Return the Cast to bfloat16 that alone reads attention."""
    value = node.outputs[0]
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return ()
    reader = uses[0].node
    is_rounding = _cast_of(scope, reader) == _ROUNDING and reader.graph is node.graph
    return (reader,) if is_rounding else ()


def _is_known(scope: Scope, node: ir.Node) -> bool:
    values = [value for value in (*node.inputs, node.outputs[0]) if value is not None]
    return all(
        scope.shapes.shape(value) is not None and scope.shapes.dtype(value) is not None
        for value in values
    )
