"""Attention on CUDA of rows that are packed: the Gathers before and after it are its kernel's.

What skips padding puts rows in their places before an attention, and takes them again after it
(`ortkit.ops.padding`). The kernel attends to the rows where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ortkit.fusion.attention.cuda_cost import predict_attention
from ortkit.fusion.attention.cuda_semantics import AttentionNode, as_array
from ortkit.fusion.regions.cost_model import Prediction
from ortkit.fusion.regions.cuda_cost_model import LAUNCH_NS
from ortkit.fusion.regions.describe import tensor_spec
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.input_names import input_names
from ortkit.fusion.regions.node_writer import NodeWriter
from ortkit.fusion.regions.region import FusedRegion
from ortkit.fusion.regions.search import Search
from ortkit.kernels.signature import DOMAIN, RegionSignature, body_text
from ortkit.rewrite.scope import Scope

_KIND = "packed_attention"


@dataclass(frozen=True)
class _Rows:
    """What is around an attention of packed rows.

    Args:
        sources: What Q, K and V are taken from: packed values, [1, rows, columns].
        places: The rows of all positions.
        indices: The positions of all rows.
        nodes: Those that put rows in their places and take them again, without the attention.
        split: The Split that makes Q, K and V, if nothing else reads them.
        result: What comes of it, [1, rows, columns].
    """

    sources: tuple[ir.Value, ...]
    places: ir.Value
    indices: ir.Value
    nodes: tuple[ir.Node, ...]
    split: ir.Node | None
    result: ir.Value


def packed_region(search: Search, node: ir.Node, found: AttentionNode) -> Candidate | None:
    """Return the region of an attention and the Gathers around it; None if it has no kernel."""
    rows = _rows_around(search.scope, node, found)
    if rows is None or search.taken.intersection(rows.nodes):
        return None
    whole = rows.sources if rows.split is None else (rows.split.inputs[0],)
    operands = (*whole, *found.operands[3:], rows.places, rows.indices)
    inputs = tuple(dict.fromkeys(value for value in operands if value is not None))
    nodes = (*rows.nodes, node) if rows.split is None else (rows.split, *rows.nodes, node)
    ordered = search.region(nodes, _KIND).nodes
    region = FusedRegion(_KIND, ordered, inputs, (rows.result,))
    signature = _signature(search.scope, region, found, rows)
    if search.accepts(signature) is not None:
        return None
    alone = predict_attention(node, found, is_split=rows.split is not None)
    theirs = alone.before_ns + LAUNCH_NS * (len(rows.nodes) // 2)
    return search.priced(region, signature, Prediction(theirs, alone.after_ns))


def _rows_around(scope: Scope, node: ir.Node, found: AttentionNode) -> _Rows | None:
    if found.caches or found.writers or found.body.stacked or found.body.columns:
        return None
    gathers = [_gather_of(scope, value) for value in found.operands[:3]]
    last = _taken_from(scope, node.outputs[0])
    if last is None or None in gathers:
        return None
    pairs = [pair for pair in gathers if pair is not None]
    places = {pair[1].inputs[1] for pair in pairs}
    sources = tuple(pair[0].inputs[0] for pair in pairs)
    if len(places) != 1 or None in places or None in sources or None in last[1].inputs[:2]:
        return None
    place, index = places.pop(), last[1].inputs[1]
    assert place is not None
    assert index is not None
    inside = {each for pair in pairs for each in pair} | {node}
    if any(use.node not in inside for pair in pairs for one in pair for use in one.outputs[0].uses()):
        return None
    known = tuple(value for value in sources if value is not None)
    nodes = tuple(dict.fromkeys((*(each for pair in pairs for each in pair), *last)))
    split = _split_of(known, {each for pair in pairs for each in pair})
    return _Rows(known, place, index, nodes, split, last[1].outputs[0])


def _gather_of(scope: Scope, value: ir.Value) -> tuple[ir.Node, ir.Node] | None:
    """Return the Reshape and the Gather that put packed rows in their places."""
    gather = value.producer()
    if gather is None or not _is(gather, "Gather") or gather.attributes.get_int("axis", 0):
        return None
    flat = None if gather.inputs[0] is None else gather.inputs[0].producer()
    rank = None if gather.inputs[1] is None else scope.shapes.rank(gather.inputs[1])
    if flat is None or not _is(flat, "Reshape") or flat.inputs[0] is None or rank != 2:
        return None
    shape, rows = scope.shapes.shape(flat.outputs[0]), scope.shapes.shape(flat.inputs[0])
    is_flat = shape is not None and rows is not None and len(shape) == 2 and len(rows) == 3
    return (flat, gather) if is_flat and rows is not None and rows[0] == 1 else None


def _taken_from(scope: Scope, value: ir.Value) -> tuple[ir.Node, ir.Node] | None:
    """Return the Reshape and the Gather that take rows from the result of an attention."""
    if len(value.uses()) != 1 or value.is_graph_output():
        return None
    flat = next(iter(value.uses())).node
    if not _is(flat, "Reshape") or len(flat.outputs[0].uses()) != 1:
        return None
    gather = next(iter(flat.outputs[0].uses())).node
    shape = scope.shapes.shape(flat.outputs[0])
    is_axis = _is(gather, "Gather") and not gather.attributes.get_int("axis", 0)
    if not is_axis or gather.inputs[0] is not flat.outputs[0] or shape is None or len(shape) != 2:
        return None
    made = scope.shapes.shape(gather.outputs[0])
    return (flat, gather) if made is not None and len(made) == 3 and made[0] == 1 else None


def _is(node: ir.Node, op_type: str) -> bool:
    return node.op_type == op_type and not node.domain


def _split_of(sources: tuple[ir.Value, ...], readers: set[ir.Node]) -> ir.Node | None:
    """Return the Split along columns that makes all three, for these readers alone."""
    split = sources[0].producer()
    if split is None or not _is(split, "Split") or tuple(split.outputs) != sources:
        return None
    if split.attributes.get_int("axis", 0) not in (2, -1) or split.inputs[0] is None:
        return None
    is_own = all(use.node in readers for value in sources for use in value.uses())
    return split if is_own and not any(value.is_graph_output() for value in sources) else None


def _signature(
    scope: Scope, region: FusedRegion, found: AttentionNode, rows: _Rows
) -> RegionSignature:
    names = dict(zip(region.inputs, input_names(region), strict=True))
    writer = NodeWriter("t", found.body.dtype)
    widths = [_columns(scope, value) for value in rows.sources]
    if rows.split is None:
        operands = [
            _placed(writer, names[value], names[rows.places], width)
            for value, width in zip(rows.sources, widths, strict=True)
        ]
    else:
        whole = rows.split.inputs[0]
        assert whole is not None, "a Split has an input"
        placed = _placed(writer, names[whole], names[rows.places], sum(widths))
        writer.nodes.append(
            helper.make_node(
                "Constant", [], ["widths"], value=numpy_helper.from_array(as_array(widths))
            )
        )
        operands = ["p0", "p1", "p2"]
        writer.nodes.append(helper.make_node("Split", [placed, "widths"], operands, axis=2))
    operands += [names[value] for value in found.operands[3:]]
    nodes: list[onnx.NodeProto] = [*writer.nodes, *found.body.nodes(operands, "all")]
    ends = NodeWriter("u", found.body.dtype)
    columns = ends.integers(-1, found.body.heads * found.body.v_width)
    flat = ends.op("Reshape", "all", columns)
    ends.named("y", "Gather", flat, names[rows.indices], axis=0)
    function = helper.make_function(
        DOMAIN, _KIND, [names[value] for value in region.inputs], ["y"], [*nodes, *ends.nodes],
        [helper.make_opsetid("", scope.opset())],
    )  # fmt: skip
    inputs = tuple(tensor_spec(scope, value, {}) for value in region.inputs)
    outputs = tuple(tensor_spec(scope, value, {}) for value in region.outputs)
    return RegionSignature(_KIND, body_text(function), inputs, outputs)


def _placed(writer: NodeWriter, rows: str, places: str, width: int) -> str:
    flat = writer.op("Reshape", rows, writer.integers(-1, width))
    return writer.op("Gather", flat, places, axis=0)


def _columns(scope: Scope, value: ir.Value) -> int:
    shape = scope.shapes.shape(value)
    assert shape is not None
    assert isinstance(shape[-1], int)
    return shape[-1]
