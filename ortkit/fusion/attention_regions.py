"""Regions of attention: the node, and the biases and parts that its operands are made of."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortkit.fusion.attention_cost import predict_attention
from ortkit.fusion.choose import Judge
from ortkit.fusion.cost import CostModel, Prediction
from ortkit.fusion.describe import describe_region
from ortkit.fusion.recompute import Candidate
from ortkit.fusion.regions import FusedRegion, region_of
from ortkit.kernels.backend import Refused
from ortkit.kernels.calibration import load_calibration
from ortkit.kernels.signature import RegionSignature
from ortkit.rewrite.scope import Scope

_NOTHING = Prediction(0.0, 0.0)


def attention_candidates(
    scope: Scope,
    graph: ir.Graph,
    judge: Judge,
    cost: CostModel,
    taken: frozenset[ir.Node] = frozenset(),
) -> Iterator[Candidate]:
    """Yield a candidate for each attention of one graph; no two share a node.

    Nothing leaves such a region but its result: that it becomes one node changes nothing about the
    order of the others.

    Args:
        scope: The graph's.
        graph: Whose nodes are looked at.
        judge: Says why there would be no kernel for a region.
        cost: Says when a prediction is not good enough.
        taken: Nodes of other regions.
    """
    calibration = load_calibration()
    for node in graph:
        if node.op_type != "Attention" or node.domain or node in taken:
            continue
        if not _is_known(scope, node):
            region = FusedRegion("attention", (node,), (), (node.outputs[0],))
            yield Candidate(region, None, _NOTHING, "operands of unknown shape")
            continue
        region, signature, verdict = _describe(scope, node, taken, judge)
        if verdict is not None:
            yield Candidate(region, None, _NOTHING, verdict.reason)
            continue
        prediction = predict_attention(scope, region, calibration)
        reason = cost.refusal(region, prediction) or ""
        yield Candidate(region, None if reason else signature, prediction, reason)


def _describe(
    scope: Scope, node: ir.Node, taken: frozenset[ir.Node], judge: Judge
) -> tuple[FusedRegion, RegionSignature, Refused | None]:
    """Return the region with all that makes the operands if that can be, else of the node."""
    before = [each for each in _before(scope, node) if each not in taken]
    for nodes in ((*before, node), (node,)):
        region = region_of(scope, nodes)
        signature = describe_region(scope, region)
        verdict = judge(signature)
        if verdict is None:
            break
    return region, signature, verdict


def _before(scope: Scope, node: ir.Node) -> list[ir.Node]:
    """Return the Splits and Adds that make Q, K and V, and are read nowhere else, in order."""
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
        if producer.op_type == "Split" or (
            producer.op_type == "Add" and _is_bias(scope, producer)
        ):
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

    Where all sizes are known it makes a Gemm of a MatMul and the bias behind it.
    """
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


def _is_known(scope: Scope, node: ir.Node) -> bool:
    values = [value for value in (*node.inputs, node.outputs[0]) if value is not None]
    return all(
        scope.shapes.shape(value) is not None and scope.shapes.dtype(value) is not None
        for value in values
    )
