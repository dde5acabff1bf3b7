"""Rotary embeddings in front of an attention, where one op can take them in."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortkit.ops.attention.heads import Heads, Operand
from ortkit.rewrite.site import Site

#: GroupQueryAttention's tables have a multiple of this many columns.
COLUMNS = 8


@dataclass(frozen=True)
class Rotary:
    """What is turned before queries meet keys."""

    query: ir.Value
    """[B, S, H * D], not turned yet"""
    key: ir.Value
    cos: ir.Value
    """[S, D / 2] or [1, S, D / 2]: a row for each position from 0 on."""
    sin: ir.Value
    is_interleaved: bool


def find_rotary(site: Site, heads: Heads) -> Rotary | None:
    """Return the rotation of queries and keys, None if it is not one for both."""
    query, key = _turner(site, heads.query), _turner(site, heads.key)
    if heads.caches is not None or query is None or key is None:
        return None
    tables = [[_table(site, node.inputs[index]) for index in (1, 2)] for node in (query, key)]
    if tables[0] != tables[1] or len(query.inputs) > 3 or len(key.inputs) > 3:
        return None
    cos, sin = tables[0]
    there = [Site(site.scope, node, site.pass_name) for node in (query, key)]
    orders = {each.int("interleaved", 0) for each in there}
    if len(orders) > 1 or cos is None or sin is None:
        return None
    sources = [node.inputs[0] for node in (query, key)]
    if any(source is None or site.rank(source) != 3 for source in sources):
        return None
    for table in (cos, sin):
        shape = site.shape(table)
        if shape is None or len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] != 1):
            return None
        if not isinstance(shape[-1], int) or shape[-1] % COLUMNS or shape[-2] != heads.keys:
            return None
    assert sources[0] is not None and sources[1] is not None
    return Rotary(sources[0], sources[1], cos, sin, bool(orders.pop()))


def _turner(site: Site, operand: Operand) -> ir.Node | None:
    if operand.way.count or operand.piece is not None or operand.scale != 1:
        return None
    return site.producer(operand.value, "RotaryEmbedding")


def _table(site: Site, table: ir.Value | None) -> ir.Value | None:
    """Return a table before it was repeated for every batch."""
    node = site.producer(table, "Expand")
    source = None if node is None else node.inputs[0]
    before, after = site.shape(source), site.shape(table)
    if source is None or before is None or after is None or before[-2:] != after[-2:]:
        return table
    return source if before[:-2] in ((), (1,)) else table
