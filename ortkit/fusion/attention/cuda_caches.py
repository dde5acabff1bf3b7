"""What the keys and values of one query are made of: shared heads, and caches that get a row.

Kernels read heads that several queries' heads share where they lie, and need no copy for each. A
cache gets its row by a Concat, or, where its size is fixed, by what PyTorch's exporters write for
`cache.index_copy_(2, place, row)`: a ScatterND between two Transposes, each a copy of the cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.graph.symbolic.dims import Size, product
from ortkit.kernels.attention_body import ROWS_BACK, ROWS_FIRST
from ortkit.ops.attention.trace import Station, trace_back
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class SharedRows:
    """Keys or values before what repeats and transposes them.

    Args:
        value: [batch, kv_heads, rows, width]
        batch: Of it.
        kv_heads: Of it.
        times: How many heads in a row each serves.
    """

    value: ir.Value
    batch: Size
    kv_heads: int
    times: int


@dataclass(frozen=True)
class CacheRow:
    """A cache that gets rows.

    Args:
        past: [batch, heads, rows, width].
        new: [batch, heads, new rows, width], or, with a place, [1, batch, heads, width].
        present: The cache with them.
        nodes: What computes that.
        at: The place of the row that is overwritten, [1, 1]; None if rows are appended.
    """

    past: ir.Value
    new: ir.Value
    present: ir.Value
    nodes: tuple[ir.Node, ...]
    at: ir.Value | None = None


def shared_rows(scope: Scope, node: ir.Node, value: ir.Value) -> SharedRows | None:
    """Return what the operand of an attention, [..., rows, ...] heads first, is made of.

    Batch and heads may stand in one axis or before the width, as long as they are in order.
    """
    for station in reversed(trace_back(Site(scope, node, ""), value)):
        shape = scope.shapes.shape(station.value)
        if shape is None or len(shape) != 4 or station.scale != 1 or station.fixed:
            continue
        found = _shared(station, shape)
        if found is not None:
            return found
    return None


def _shared(station: Station, shape: tuple[Size, ...]) -> SharedRows | None:
    batch, heads, rows, width = station.layout.source
    result = station.layout.result
    dim = len(result) - 2
    repeated = station.layout.repeated
    others = [factor for axis, group in enumerate(result) if axis != dim for factor in group]
    if result[dim] != rows or others != [*batch, *heads, *repeated, *width]:
        return None
    times, kv_heads = product(factor.size for factor in repeated), shape[1]
    if not isinstance(times, int) or not isinstance(kv_heads, int):
        return None
    return SharedRows(station.value, shape[0], kv_heads, times)


def cache_row(scope: Scope, present: ir.Value) -> CacheRow | None:
    """Return the cache that `present` is with new rows; None if it is something else."""
    node = present.producer()
    if node is not None and (node.domain, node.op_type) == ("", "Concat"):
        past, new = (*node.inputs, None)[:2]
        if node.attributes.get_int("axis", 0) not in (2, -2) or len(node.inputs) != 2:
            return None
        if past is None or new is None or past is new:
            return None
        return CacheRow(past, new, present, (node,))
    return _written(scope, present)


def _written(scope: Scope, present: ir.Value) -> CacheRow | None:
    back = _transpose(present, ROWS_BACK)
    scatter = None if back is None or back.inputs[0] is None else back.inputs[0].producer()
    if back is None or scatter is None or (scatter.domain, scatter.op_type) != ("", "ScatterND"):
        return None
    reduction = scatter.attributes.get("reduction")
    if reduction is not None and reduction.as_string() != "none":
        return None
    transposed, at, new = scatter.inputs
    turn = None if transposed is None else _transpose(transposed, ROWS_FIRST)
    past = None if turn is None else turn.inputs[0]
    if turn is None or past is None or at is None or new is None:
        return None
    shape = scope.shapes.shape(past)
    if shape is None or len(shape) != 4 or scope.shapes.shape(at) != (1, 1):
        return None
    if scope.shapes.shape(new) != (1, shape[0], shape[1], shape[3]):
        return None
    inner = (turn.outputs[0], scatter.outputs[0])
    if any(len(value.uses()) > 1 or value.is_graph_output() for value in inner):
        return None
    return CacheRow(past, new, present, (turn, scatter, back), at)


def depends(values: Iterable[ir.Value], nodes: Iterable[ir.Node]) -> bool:
    """Say whether one of `nodes` is needed to make one of `values`."""
    wanted, seen, pending = set(nodes), set[ir.Node](), list[ir.Value | None](values)
    while pending:
        value = pending.pop()
        node = None if value is None else value.producer()
        if node in wanted:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            pending += node.inputs
    return False


def _transpose(value: ir.Value, perm: tuple[int, ...]) -> ir.Node | None:
    node = value.producer()
    if node is None or (node.domain, node.op_type) != ("", "Transpose"):
        return None
    found = node.attributes.get("perm")
    return node if found is not None and tuple(found.as_ints()) == perm else None
