"""Regions of attention: the node, and the biases and parts that its operands are made of.

Of operands that are rounded to bfloat16, for products in it, the roundings too, and that of the
result.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortkit.fusion.attention.cpu_cost import predict_attention
from ortkit.fusion.regions.cost_model import CostModel, Prediction
from ortkit.fusion.regions.describe import describe_region
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.family import per_graph
from ortkit.fusion.regions.region import FusedRegion, region_of
from ortkit.fusion.regions.select import Accepts
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tuning.calibration import load_calibration
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope

_NOTHING = Prediction(0.0, 0.0)
_WIDENING = (ir.DataType.BFLOAT16, ir.DataType.FLOAT)
_ROUNDING = (ir.DataType.FLOAT, ir.DataType.BFLOAT16)


def attention_candidates(
    scope: Scope,
    graph: ir.Graph,
    accepts: Accepts,
    cost: CostModel,
    excluded: frozenset[ir.Node] = frozenset(),
) -> Iterator[Candidate]:
    """Yield a candidate for each attention of one graph; no two share a node.

    Nothing leaves such a region but its result: that it becomes one node changes nothing about the
    order of the others. What is rounded is always taken if there is a kernel.

    Args:
        scope: The graph's.
        graph: Whose nodes are looked at.
        accepts: Says why there would be no kernel for a region.
        cost: Says when a prediction is not good enough.
        excluded: Nodes of other regions.
    """
    calibration = load_calibration()
    for node in graph:
        if node.op_type != "Attention" or node.domain or node in excluded:
            continue
        if not _is_known(scope, node):
            region = FusedRegion("attention", (node,), (), (node.outputs[0],))
            yield Candidate(region, None, _NOTHING, "operands of unknown shape")
            continue
        region, signature, verdict = _describe(scope, node, excluded, accepts)
        if verdict is not None:
            yield Candidate(region, None, _NOTHING, verdict.reason)
            continue
        is_rounded = "Cast" in {each.op_type for each in region.nodes}
        prediction = predict_attention(scope, region, calibration)
        # Without a kernel rounding would cost, and gain nothing.
        reason = "" if is_rounded else cost.refusal(region, prediction) or ""
        yield Candidate(region, None if reason else signature, prediction, reason)


family = per_graph(attention_candidates)


def _describe(
    scope: Scope, node: ir.Node, excluded: frozenset[ir.Node], accepts: Accepts
) -> tuple[FusedRegion, RegionSignature, Refused | None]:
    """Return the region with as much of what makes the operands as can be, else of the node."""
    before = [each for each in _before(scope, node) if each not in excluded]
    casts = [each for each in before if each.op_type == "Cast"]
    widening = [each for each in casts if each.outputs[0] in node.inputs]
    roundings = [each for each in _rounding_consumer(scope, node) if each not in excluded]
    tried = [*((*some, node, *roundings) for some in (before, casts, widening)), (node,)]
    for nodes in tried:
        region = region_of(scope, nodes)
        signature = describe_region(scope, region)
        verdict = accepts(signature)
        if verdict is None:
            break
    return region, signature, verdict


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
