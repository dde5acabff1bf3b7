"""Regions of attention on CUDA: the node, and the Split that its operands are parts of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ortkit.fusion.attention_bodies import SINCE
from ortkit.fusion.choose import Judge
from ortkit.fusion.cost import CostModel, Prediction
from ortkit.fusion.cuda_attention_cost import predict_attention
from ortkit.fusion.cuda_attention_nodes import AttentionNode, as_array, is_attention, read_node
from ortkit.fusion.describe import tensor_spec
from ortkit.fusion.recompute import Candidate
from ortkit.fusion.regions import FusedRegion
from ortkit.kernels.backend import Refused
from ortkit.kernels.signature import DOMAIN, RegionSignature, body_text
from ortkit.rewrite.scope import Scope

_NOTHING = Prediction(0.0, 0.0)
_KIND = "attention"


def cuda_attention_candidates(
    scope: Scope,
    graph: ir.Graph,
    judge: Judge,
    cost: CostModel,
    taken: frozenset[ir.Node] = frozenset(),
) -> Iterator[Candidate]:
    """Yield a candidate for each attention of one graph; no two share a node.

    Args:
        scope: The graph's.
        graph: Whose nodes are looked at.
        judge: Says why there would be no kernel for a region.
        cost: Says when a prediction is not good enough.
        taken: Nodes of other regions.
    """
    for node in graph:
        if not is_attention(node) or node in taken:
            continue
        found = read_node(scope, node)
        if scope.opset() < SINCE:
            found = Refused(f"attention's body needs opset {SINCE}")
        if isinstance(found, Refused):
            region = FusedRegion(_KIND, (node,), (), (node.outputs[0],))
            yield Candidate(region, None, _NOTHING, found.reason)
            continue
        split = _split_before(scope, node, found)
        split = None if split in taken else split
        region = _region(node, found, split)
        signature = _signature(scope, region, found, split)
        verdict = judge(signature)
        if verdict is not None:
            yield Candidate(region, None, _NOTHING, verdict.reason)
            continue
        prediction = predict_attention(node, found, is_split=split is not None)
        reason = cost.refusal(region, prediction) or ""
        yield Candidate(region, None if reason else signature, prediction, reason)


def _split_before(scope: Scope, node: ir.Node, found: AttentionNode) -> ir.Node | None:
    """Return the Split along columns that Q, K and V are all of, and nothing else reads."""
    operands = found.operands[:3]
    split = operands[0].producer()
    if split is None or split.op_type != "Split" or split.domain or split.graph is not node.graph:
        return None
    if set(split.outputs) != set(operands) or len(set(operands)) != 3:
        return None
    for value in split.outputs:
        if value.is_graph_output() or any(use.node is not node for use in value.uses()):
            return None
    shape = None if split.inputs[0] is None else scope.shapes.shape(split.inputs[0])
    if found.body.stacked or shape is None or len(shape) != 3 or not isinstance(shape[2], int):
        return None
    axis = split.attributes.get("axis")
    return split if axis is not None and axis.as_int() in (2, -1) else None


def _region(node: ir.Node, found: AttentionNode, split: ir.Node | None) -> FusedRegion:
    mask = found.operands[3:]
    if split is None:
        inputs = tuple(dict.fromkeys(found.operands))
        return FusedRegion(_KIND, (node,), inputs, (node.outputs[0],))
    whole = split.inputs[0]
    assert whole is not None
    return FusedRegion(_KIND, (split, node), (whole, *mask), (node.outputs[0],))


def _signature(
    scope: Scope, region: FusedRegion, found: AttentionNode, split: ir.Node | None
) -> RegionSignature:
    names = {value: f"x{index}" for index, value in enumerate(region.inputs)}
    nodes: list[onnx.NodeProto] = []
    if split is not None:
        widths = [_columns(scope, value) for value in split.outputs]
        held = numpy_helper.from_array(as_array(widths))
        nodes.append(helper.make_node("Constant", [], ["widths"], value=held))
        parts = [f"p{index}" for index in range(len(widths))]
        nodes.append(helper.make_node("Split", ["x0", "widths"], parts, axis=2))
        names |= dict(zip(split.outputs, parts, strict=True))
    nodes += found.body.nodes([names[value] for value in found.operands], "y")
    function = helper.make_function(
        DOMAIN, _KIND, [names[value] for value in region.inputs], ["y"], nodes,
        [helper.make_opsetid("", scope.opset())],
    )  # fmt: skip
    inputs = tuple(tensor_spec(scope, value, {}) for value in region.inputs)
    outputs = tuple(tensor_spec(scope, value, {}) for value in region.outputs)
    return RegionSignature(_KIND, body_text(function), inputs, outputs)


def _columns(scope: Scope, value: ir.Value) -> int:
    shape = scope.shapes.shape(value)
    assert shape is not None
    assert isinstance(shape[-1], int)
    return shape[-1]


def without_readers(regions: Iterable[FusedRegion]) -> frozenset[ir.Node]:
    """Return the nodes that nothing reads once these regions are nodes: masks repeated, say.

    A region reads what a mask was made of, and not the mask.
    """
    kept = {value for region in regions for value in region.inputs}
    gone = {node for region in regions for node in region.nodes}
    pending = [value for node in gone for value in node.inputs]
    found: set[ir.Node] = set()
    while pending:
        value = pending.pop()
        node = None if value is None else value.producer()
        if node is None or node in found or node in gone:
            continue
        outputs = node.outputs
        if any(one in kept or one.is_graph_output() for one in outputs):
            continue
        if all(use.node in found or use.node in gone for one in outputs for use in one.uses()):
            found.add(node)
            pending += node.inputs
    return frozenset(found)
