"""Sizes that are known at run time only, read where all layers can share them."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.graph.dims import Size
from ortkit.ops.attention.core import Core
from ortkit.ops.attention.facts import Facts
from ortkit.ops.attention.heads import Heads
from ortkit.rewrite.site import Site

SHAPE_HAS_A_START = 15


def total_keys(site: Site, heads: Heads, facts: Facts) -> ir.Value:
    """Return the number of cached and new keys; the op makes the value that has it."""
    assert heads.caches is not None
    past = heads.caches[0].past
    shape = site.shape(past)
    assert shape is not None
    new = heads.keys - shape[2]
    return site.op("Add", [axis_size(site, past, 2), size_of(site, new, facts)])


def size_of(site: Site, size: Size, facts: Facts) -> ir.Value:
    """Return a size as a vector of one element."""
    if isinstance(size, int):
        return site.constant((size,))
    found = facts.source_of(size, site.node)
    assert found is not None, "the scores were made from a value with this size"
    return axis_size(site, *found)


def axis_size(site: Site, value: ir.Value, axis: int) -> ir.Value:
    if site.opset >= SHAPE_HAS_A_START:
        return site.op("Shape", [value], {"start": axis, "end": axis + 1})
    return site.op("Gather", [site.op("Shape", [value]), site.constant((axis,))])


def measure_elsewhere(site: Site, core: Core, facts: Facts) -> None:
    """Let the sizes of scores be read from what the scores are made from.

    A mask often has the shape of the scores that it is added to; these are not computed any more.
    """
    for node in core.measured:
        sizes = site.scope.shapes.contents(node.outputs[0])
        there = Site(site.scope, node, site.pass_name)
        if node.graph is not site.node.graph or not sizes:
            continue
        parts = [size_of(there, size, facts) for size in sizes]
        made = parts[0] if len(parts) == 1 else there.op("Concat", parts, {"axis": 0})
        there.replace(made)
