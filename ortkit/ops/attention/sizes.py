"""Sizes that are known at run time only, read where all layers can share them."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.graph.dims import Size
from ortkit.ops.attention.core import Core
from ortkit.ops.attention.facts import Facts
from ortkit.ops.attention.heads import Cache, Heads
from ortkit.rewrite.site import Site

SHAPE_HAS_A_START = 15


def size_of(site: Site, size: Size, heads: Heads, facts: Facts) -> ir.Value:
    """Return a size as a vector of one element.

    Args:
        site: The node that it is inserted before.
        size: A size of the attention's scores.
        heads: The attention's operands.
        facts: Where sizes can be taken from.
    """
    if isinstance(size, int):
        return site.constant((size,))
    if heads.caches is not None and size == heads.keys:
        return _total_keys(site, heads, heads.caches[0], facts)
    found = facts.source_of(size, site.node)
    assert found is not None, "the scores were made from a value with this size"
    return axis_size(site, *found)


def _total_keys(site: Site, heads: Heads, cache: Cache, facts: Facts) -> ir.Value:
    """Return the number of cached and new keys; the op itself makes the value that has it."""
    new = heads.key.layout.shape[1 if heads.form == "3d" else 2]
    return site.op("Add", [axis_size(site, cache.past, 2), size_of(site, new, heads, facts)])


def axis_size(site: Site, value: ir.Value, axis: int) -> ir.Value:
    if site.opset >= SHAPE_HAS_A_START:
        return site.op("Shape", [value], {"start": axis, "end": axis + 1})
    return site.op("Gather", [site.op("Shape", [value]), site.constant((axis,))])


def measure_elsewhere(site: Site, core: Core, heads: Heads, facts: Facts) -> None:
    """Let the sizes of scores be read from what the scores are made from.

    A mask often has the shape of the scores that it is added to; these are not computed any more.
    """
    for node in core.measured:
        sizes = site.scope.shapes.contents(node.outputs[0])
        there = Site(site.scope, node, site.pass_name)
        if node.graph is not site.node.graph or not sizes:
            continue
        parts = [size_of(there, size, heads, facts) for size in sizes]
        made = parts[0] if len(parts) == 1 else there.op("Concat", parts, {"axis": 0})
        there.replace(made)
