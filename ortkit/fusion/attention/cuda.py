"""Regions of attention on CUDA: the node, the Split of its operands, and the bias before it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ortkit.fusion.attention.cuda_cost import leaves_bias, predict_attention
from ortkit.fusion.attention.cuda_packed import columns_of, is_own_split, packed_region
from ortkit.fusion.attention.cuda_semantics import AttentionNode, is_attention, read_node
from ortkit.fusion.regions.access import only_reader
from ortkit.fusion.regions.describe import tensor_spec
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.fp8_rounding import FP8, rounding_consumer, written_rounding
from ortkit.fusion.regions.input_names import input_names
from ortkit.fusion.regions.lower import fused_name, import_fused
from ortkit.fusion.regions.region import FusedRegion
from ortkit.fusion.regions.search import Search, alone, refused
from ortkit.kernels.anchor import Anchor
from ortkit.kernels.attention_body import SINCE
from ortkit.kernels.signature import DOMAIN, RegionSignature, body_text
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope

_KIND = "attention"
#: What keys and values are called with new rows after them.
_MADE = ("keys", "values")


def regions(search: Search, _: Anchor) -> Iterator[Candidate]:
    """Yield a candidate for each attention of one graph."""
    for node in search.nodes():
        if is_attention(node):
            yield attention_region(search, node)


def function_of(scope: Scope, node: ir.Node) -> None:
    """Write an attention that no region took as a function with its body."""
    found = read_node(scope, node)
    assert isinstance(found, AttentionNode), "a region was to be made of it"
    region = _region(node, found, _Packing())
    signature = _signature(scope, region, found, _Packing())
    domain, op_type = import_fused(scope, signature)
    name, called = f"{region.at}/function", fused_name(region.at, signature)
    made = scope.insert(node, op_type, region.inputs, domain=domain, name=name, called=called)
    scope.replace(region.outputs[0], made[0])


def attention_region(search: Search, node: ir.Node) -> Candidate:
    """Return the region of an attention, or why it is none."""
    scope, excluded = search.scope, search.excluded
    found = read_node(scope, node)
    if isinstance(found, AttentionNode) and excluded.intersection(found.writers):
        found = Refused("attention with a cache that another region writes")
    if scope.opset() < SINCE:
        found = Refused(f"attention's body needs opset {SINCE}")
    if isinstance(found, Refused):
        return refused(alone(_KIND, node), found.reason)
    if (packed := packed_region(search, node, found)) is not None:
        return packed
    packing = _packing_before(scope, node, found, excluded)
    prediction = predict_attention(
        node, found, is_split=bool(packing.splits), is_biased=packing.add is not None
    )
    rounding = () if found.caches else rounding_consumer(scope, node.outputs[0], excluded)
    if rounding:
        region = _region(node, found, packing, rounding)
        signature = _signature(scope, region, found, packing, rounding)
        if search.accepts(signature) is None:
            return search.priced(region, signature, prediction)
    region = _region(node, found, packing)
    signature = _signature(scope, region, found, packing)
    if (verdict := search.accepts(signature)) is not None:
        return refused(region, verdict.reason)
    return search.priced(region, signature, prediction)


@dataclass(frozen=True)
class _Packing:
    """What Q, K and V are parts of.

    Args:
        splits: The Splits along columns that make some of them, if nothing else reads what those
            make.
        add: The sum of rows and a constant one before the one that makes all, if nothing else
            reads it.
    """

    splits: tuple[ir.Node, ...] = ()
    add: ir.Node | None = None

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """Those that there are, in order."""
        return self.splits if self.add is None else (self.add, *self.splits)

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """What they read, but for sizes: rows, or rows and the constant one."""
        if self.add is None:
            return tuple(split.inputs[0] for split in self.splits if split.inputs[0] is not None)
        found = tuple(value for value in self.add.inputs if value is not None)
        return found[::-1] if _is_row(found[0]) else found


def _is_row(value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) == 1


def _packing_before(
    scope: Scope, node: ir.Node, found: AttentionNode, excluded: Collection[ir.Node]
) -> _Packing:
    splits = tuple(item for item in _splits_before(scope, node, found) if item not in excluded)
    whole = splits[0].inputs[0] if splits else None
    add = None if whole is None else whole.producer()
    if add is None or add in excluded or add.op_type != "Add" or add.domain or found.body.softcap:
        return _Packing(splits)
    if found.caches or set(splits[0].outputs) != set(found.operands[:3]):
        return _Packing(splits)
    if whole is None or whole.is_graph_output() or len(whole.uses()) > 1:
        return _Packing(splits)
    if add.graph is not node.graph or not _adds_row(scope, add):
        return _Packing(splits)
    if leaves_bias(found) and _ends_product(scope, add):
        return _Packing(splits)
    return _Packing(splits, add)


def _ends_product(scope: Scope, add: ir.Node) -> bool:
    """Say whether a sum is the only reader of a product by a matrix in fp8, which takes it in.

    Other products are often ONNX Runtime's, where a sum takes more than it does in attention. For
    32 samples of 12 heads at 512 positions it is 107 us beside 61 (an H200, 2026-11-29).
    """
    for value in add.inputs:
        product = None if value is None else value.producer()
        if value is None or product is None or only_reader(value) is not add:
            continue
        if product.op_type == "MatMul" and not product.domain:
            return _is_narrow(scope, product.inputs[1])
    return False


def _is_narrow(scope: Scope, matrix: ir.Value | None) -> bool:
    """Say whether a matrix has eight bits: it is dequantized, and may be transposed then."""
    node = None if matrix is None else matrix.producer()
    if node is not None and node.op_type == "Transpose" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.op_type != "DequantizeLinear" or node.inputs[0] is None:
        return False
    return scope.shapes.dtype(node.inputs[0]) == FP8 and scope.shapes.rank(node.inputs[0]) == 2


def _adds_row(scope: Scope, add: ir.Node) -> bool:
    """Say whether a constant row is added to rows of the same length."""
    rows, row = add.inputs
    if rows is None or row is None:
        return False
    if scope.shapes.rank(rows) == 1:
        rows, row = row, rows
    shape, own = scope.shapes.shape(rows), scope.shapes.shape(row)
    if shape is None or own is None or len(shape) != 3 or own != shape[2:]:
        return False
    return scope.is_constant(row) and scope.shapes.dtype(rows) == scope.shapes.dtype(row)


def _splits_before(scope: Scope, node: ir.Node, found: AttentionNode) -> list[ir.Node]:
    """Return the Splits along columns that make Q, K or V, and what nothing else reads."""
    producers = dict.fromkeys(value.producer() for value in found.operands[:3])
    return [
        producer for producer in producers
        if producer is not None
        and not found.body.stacked
        and is_own_split(scope, producer, {node})
    ]  # fmt: skip


def _region(
    node: ir.Node, found: AttentionNode, packing: _Packing, rounding: tuple[ir.Node, ...] = ()
) -> FusedRegion:
    parts = {value for split in packing.splits for value in split.outputs}
    separate = (value for value in found.operands if value not in parts)
    operands = (*packing.inputs, *separate)
    pasts, presents = [past for past, _ in found.caches], [made for _, made in found.caches]
    positions = () if found.at is None else (found.at,)
    inputs = tuple(dict.fromkeys((*operands, *pasts, *positions)))
    nodes = (*packing.nodes, *found.writers, node, *rounding)
    return FusedRegion(_KIND, nodes, inputs, (*presents, nodes[-1].outputs[0]))


def _signature(
    scope: Scope,
    region: FusedRegion,
    found: AttentionNode,
    packing: _Packing,
    rounding: tuple[ir.Node, ...] = (),
) -> RegionSignature:
    names = dict(zip(region.inputs, input_names(region), strict=True))
    nodes: list[onnx.NodeProto] = []
    if packing.add is not None:
        nodes.append(helper.make_node("Add", list(names.values())[:2], ["sum"]))
    for number, split in enumerate(packing.splits):
        whole = "sum" if packing.add is not None else names[split.inputs[0]]  # type: ignore[index]
        widths = [columns_of(scope, value) for value in split.outputs]
        widths_tensor = numpy_helper.from_array(np.array(widths, np.int64))
        nodes.append(helper.make_node("Constant", [], [f"widths{number}"], value=widths_tensor))
        parts = [f"p{number}_{index}" for index in range(len(widths))]
        nodes.append(helper.make_node("Split", [whole, f"widths{number}"], parts, axis=2))
        names |= dict(zip(split.outputs, parts, strict=True))
    caches = [(names[past], made) for (past, _), made in zip(found.caches, _MADE, strict=False)]
    at = "" if found.at is None else names[found.at]
    nodes += found.body.nodes([names[value] for value in found.operands], "y", caches, at)
    result = "y"
    if rounding:
        result = "rounded"
        nodes += written_rounding(scope, rounding, "y", result)
    function = helper.make_function(
        DOMAIN, _KIND, [names[value] for value in region.inputs],
        [*(made for _, made in caches), result], nodes,
        [helper.make_opsetid("", scope.opset())],
    )  # fmt: skip
    inputs = tuple(tensor_spec(scope, value) for value in region.inputs)
    outputs = tuple(tensor_spec(scope, value) for value in region.outputs)
    return RegionSignature(_KIND, body_text(function), inputs, outputs)


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
        if any(output in kept or output.is_graph_output() for output in outputs):
            continue
        if all(use.node in found or use.node in gone for item in outputs for use in item.uses()):
            found.add(node)
            pending += node.inputs
    return frozenset(found)
