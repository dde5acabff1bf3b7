"""Attention on CUDA of rows that are packed: the Gathers before and after it are its kernel's.

What skips padding unpacks rows before an attention, one for each position, and packs them after it
(`ortkit.ops.padding`). The kernel attends to the rows where they are.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import onnx_ir as ir
from onnx import helper

from ortkit.fusion.attention.cuda_cost import predict_attention
from ortkit.fusion.attention.cuda_semantics import AttentionNode
from ortkit.fusion.regions.access import only_reader
from ortkit.fusion.regions.cost_model import Prediction
from ortkit.fusion.regions.describe import tensor_spec
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.region import FusedRegion
from ortkit.fusion.regions.search import Search
from ortkit.kernels.attention_body import AttentionBody
from ortkit.kernels.node_writer import NodeWriter
from ortkit.kernels.signature import DOMAIN, RegionSignature, body_text
from ortkit.kernels.tuning.gemm_times import LAUNCH_NS
from ortkit.rewrite.scope import Scope

_KIND = "packed_attention"


@dataclass(frozen=True)
class _Rows:
    """What is around an attention of packed rows.

    Args:
        sources: What Q, K and V are taken from: packed values, [1, rows, columns].
        unpack_indices: The row of each position, of a Gather.
        pack_indices: The position of each row, of a Gather.
        nodes: Those that unpack and pack rows, without the attention.
        split: The Split that makes Q, K and V, if nothing else reads them.
        result: What comes of it, [1, rows, columns].
    """

    sources: tuple[ir.Value, ...]
    unpack_indices: ir.Value
    pack_indices: ir.Value
    nodes: tuple[ir.Node, ...]
    split: ir.Node | None
    result: ir.Value


def packed_region(search: Search, node: ir.Node, found: AttentionNode) -> Candidate | None:
    """Return the region of an attention and the Gathers around it; None if it has no kernel."""
    rows = _rows_around(search.scope, node, found)
    if rows is None or search.excluded.intersection(rows.nodes):
        return None
    whole = rows.sources if rows.split is None else (rows.split.inputs[0],)
    operands = (*whole, *found.operands[3:], rows.unpack_indices, rows.pack_indices)
    inputs = tuple(dict.fromkeys(value for value in operands if value is not None))
    if len(inputs) != len(whole) + 3 or not found.body.mask:
        return None
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
    last = _packed_result(scope, node.outputs[0])
    if last is None or None in gathers:
        return None
    pairs = [pair for pair in gathers if pair is not None]
    unpack_indices = {pair[1].inputs[1] for pair in pairs}
    sources = tuple(pair[0].inputs[0] for pair in pairs)
    if len(unpack_indices) != 1 or None in {*unpack_indices, *sources, *last[1].inputs[:2]}:
        return None
    unpack, pack = unpack_indices.pop(), last[1].inputs[1]
    assert unpack is not None
    assert pack is not None
    inside = {each for pair in pairs for each in pair} | {node}
    if any(
        use.node not in inside for pair in pairs for item in pair for use in item.outputs[0].uses()
    ):
        return None
    known = tuple(value for value in sources if value is not None)
    nodes = tuple(dict.fromkeys((*(each for pair in pairs for each in pair), *last)))
    split = known[0].producer()
    is_whole = split is not None and tuple(split.outputs) == known
    if split is None or not is_whole or not is_own_split(scope, split, inside - {node}):
        split = None
    return _Rows(known, unpack, pack, nodes, split, last[1].outputs[0])


def _gather_of(scope: Scope, value: ir.Value) -> tuple[ir.Node, ir.Node] | None:
    """Return the Reshape and the Gather that unpack rows: one for each position."""
    gather = value.producer()
    if gather is None or not _is(gather, "Gather") or gather.attributes.get_int("axis", 0) != 0:
        return None
    flat = None if gather.inputs[0] is None else gather.inputs[0].producer()
    rank = None if gather.inputs[1] is None else scope.shapes.rank(gather.inputs[1])
    if flat is None or not _is(flat, "Reshape") or flat.inputs[0] is None or rank != 2:
        return None
    shape, rows = scope.shapes.shape(flat.outputs[0]), scope.shapes.shape(flat.inputs[0])
    is_flat = shape is not None and rows is not None and len(shape) == 2 and len(rows) == 3
    return (flat, gather) if is_flat and rows is not None and rows[0] == 1 else None


def _packed_result(scope: Scope, value: ir.Value) -> tuple[ir.Node, ir.Node] | None:
    """Return the Reshape and the Gather that pack the result of an attention again."""
    flat = only_reader(value)
    gather = None if flat is None or not _is(flat, "Reshape") else only_reader(flat.outputs[0])
    if flat is None or gather is None:
        return None
    shape = scope.shapes.shape(flat.outputs[0])
    is_axis = _is(gather, "Gather") and gather.attributes.get_int("axis", 0) == 0
    if not is_axis or gather.inputs[0] is not flat.outputs[0] or shape is None or len(shape) != 2:
        return None
    made = scope.shapes.shape(gather.outputs[0])
    return (flat, gather) if made is not None and len(made) == 3 and made[0] == 1 else None


def _is(node: ir.Node, op_type: str) -> bool:
    return node.op_type == op_type and not node.domain


def is_own_split(scope: Scope, split: ir.Node, readers: Set[ir.Node]) -> bool:
    """Say whether a node splits columns, for some others of its graph alone."""
    if not _is(split, "Split") or any(reader.graph is not split.graph for reader in readers):
        return False
    for value in split.outputs:
        if value.is_graph_output() or any(use.node not in readers for use in value.uses()):
            return False
    shape = None if split.inputs[0] is None else scope.shapes.shape(split.inputs[0])
    if shape is None or len(shape) != 3 or not isinstance(shape[2], int):
        return False
    return split.attributes.get_int("axis", 0) in (2, -1)


def _signature(
    scope: Scope, region: FusedRegion, found: AttentionNode, rows: _Rows
) -> RegionSignature:
    widths = [columns_of(scope, value) for value in rows.sources]
    text = packed_nodes(
        found.body,
        len(region.inputs),
        widths,
        is_whole=rows.split is not None,
        opset=scope.opset(),
    )
    inputs = tuple(tensor_spec(scope, value) for value in region.inputs)
    outputs = tuple(tensor_spec(scope, value) for value in region.outputs)
    return RegionSignature(_KIND, text, inputs, outputs)


def packed_nodes(
    body: AttentionBody, count: int, widths: Sequence[int], *, is_whole: bool, opset: int
) -> str:
    """Return the text of a body: rows are unpacked, attended to, and packed again.

    Args:
        body: The attention of all positions.
        count: Of inputs: packed rows, a mask, indices that unpack them, indices that pack them.
        widths: Columns of Q, K and V.
        is_whole: Whether these are columns of one input.
        opset: Of the body.
    """
    names = [f"x{number}" for number in range(count)]
    *parts, mask, unpack_indices, pack_indices = names
    writer = NodeWriter("t", body.dtype)
    if is_whole:
        unpacked = _unpacked(writer, parts[0], unpack_indices, sum(widths))
        sizes = writer.integers(*widths)
        operands = ["p0", "p1", "p2"]
        writer.nodes.append(helper.make_node("Split", [unpacked, sizes], operands, axis=2))
    else:
        pairs = zip(parts, widths, strict=True)
        operands = [_unpacked(writer, name, unpack_indices, width) for name, width in pairs]
    ends = NodeWriter("u", body.dtype)
    flat = ends.op("Reshape", "all", ends.integers(-1, body.heads * body.v_width))
    ends.named("y", "Gather", flat, pack_indices, axis=0)
    nodes = [*writer.nodes, *body.nodes([*operands, mask], "all"), *ends.nodes]
    opsets = [helper.make_opsetid("", opset)]
    return body_text(helper.make_function(DOMAIN, _KIND, names, ["y"], nodes, opsets))


def _unpacked(writer: NodeWriter, rows: str, indices: str, width: int) -> str:
    flat = writer.op("Reshape", rows, writer.integers(-1, width))
    return writer.op("Gather", flat, indices, axis=0)


def columns_of(scope: Scope, value: ir.Value) -> int:
    """Return the last size of a value, which is known."""
    shape = scope.shapes.shape(value)
    assert shape is not None
    assert isinstance(shape[-1], int)
    return shape[-1]
