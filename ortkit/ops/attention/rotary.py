"""Rotary embeddings in front of an attention, where one op can take them in."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortkit.analysis.random_ops import is_random
from ortkit.graph.symbolic.dims import Size
from ortkit.ops.attention.heads import Heads
from ortkit.ops.attention.operands import Operand
from ortkit.rewrite.site import Site

#: GroupQueryAttention's tables have a multiple of this many columns.
COLUMNS = 8


@dataclass(frozen=True)
class Rotary:
    """The rotary embedding of queries and keys."""

    query: ir.Value
    """[B, S, H * D], before the rotation"""
    key: ir.Value
    cos: ir.Value
    """[S, D / 2] or [1, S, D / 2]: a row for each position from 0 on."""
    sin: ir.Value
    is_interleaved: bool


def find_rotary(site: Site, heads: Heads) -> Rotary | None:
    """Return the rotation of queries and keys, None if it is not one for both."""
    query, key = _rotated(site, heads.query), _rotated(site, heads.key)
    if heads.caches is not None or query is None or key is None:
        return None
    if query.is_interleaved != key.is_interleaved:
        return None
    if not query.head_size == key.head_size == heads.head_size:
        # Partial rotations rotate the first channels of their own heads.
        return None
    if not all(map(_is_same, query.tables, key.tables)):
        return None
    for table in query.tables:
        shape = site.shape(table)
        if shape is None or len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] != 1):
            return None
        if not isinstance(shape[-1], int) or shape[-1] % COLUMNS or shape[-2] != heads.keys:
            return None
    return Rotary(query.source, key.source, *query.tables, query.is_interleaved)


def _is_same(one: ir.Value | None, other: ir.Value | None, depth: int = 4) -> bool:
    """Say whether two values are computed alike; nodes that are equal may not be one yet."""
    if one is other or one is None or other is None:
        return one is other
    first, second = one.producer(), other.producer()
    if first is None or second is None or not depth or len(first.outputs) != 1:
        return False
    same_op = first.domain == second.domain and first.op_type == second.op_type
    if not same_op or is_random(first) or len(first.inputs) != len(second.inputs):
        return False
    settings = [
        {name: attribute.value for name, attribute in node.attributes.items()}
        for node in (first, second)
    ]
    return settings[0] == settings[1] and all(
        _is_same(*pair, depth - 1) for pair in zip(first.inputs, second.inputs, strict=True)
    )


@dataclass(frozen=True)
class _Rotated:
    source: ir.Value
    tables: tuple[ir.Value, ir.Value]
    is_interleaved: bool
    head_size: Size | None
    """Width of one rotated span of channels."""


def _rotated(site: Site, operand: Operand) -> _Rotated | None:
    """Return what makes an operand, if that is a rotation with a row for each position."""
    node = operand.value.producer()
    if node is None or node.op_type != "RotaryEmbedding" or operand.way.count:
        return None
    if operand.piece is not None:
        return None
    if node.domain == "" and len(node.inputs) == 3:
        source, cos, sin = node.inputs
    elif node.domain == "com.microsoft" and site.scalar(node.inputs[1]) == 0:
        # One position instead of many: that of the first query.
        source, _, cos, sin = node.inputs
    else:
        return None
    cos, sin = _table(site, cos), _table(site, sin)
    if source is None or cos is None or sin is None or site.rank(source) != 3:
        return None
    there = Site(site.scope, node, site.pass_name)
    count, shape, table = there.int("num_heads", 0), site.shape(source), site.shape(cos)
    size: Size | None = None
    if count and shape is not None and isinstance(shape[-1], int):
        size = shape[-1] // count
    elif not count and table is not None and isinstance(table[-1], int):
        size = 2 * table[-1]
    return _Rotated(source, (cos, sin), bool(there.int("interleaved", 0)), size)


def _table(site: Site, table: ir.Value | None) -> ir.Value | None:
    """Return a table before it was repeated for every batch."""
    node = site.producer(table, "Expand")
    source = None if node is None else node.inputs[0]
    before, after = site.shape(source), site.shape(table)
    if source is None or before is None or after is None or before[-2:] != after[-2:]:
        return table
    return source if before[:-2] in ((), (1,)) else table
