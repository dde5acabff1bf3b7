"""Sizes that are known at run time only, read where all layers can share them."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.graph.symbolic.dims import Size
from ortkit.ops.attention.core import Core
from ortkit.ops.attention.heads import Cache, Heads
from ortkit.ops.attention.mask_values import Facts
from ortkit.refusal import RefusedError
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
    found = source_of(site, size, heads, facts)
    assert found is not None, "what has no source was refused"
    return axis_size(site, *found)


def source_of(site: Site, size: Size, heads: Heads, facts: Facts) -> tuple[ir.Value, int] | None:
    """Return a value with an axis of this size, and the axis, that the new op does not make."""
    makers = [cache.present.producer() for cache in heads.caches or ()]
    readers = [site.node, *(maker for maker in makers if maker is not None)]
    found = [facts.source_of(size, reader) for reader in readers]
    return None if None in found else found[0]


def check_sizes(site: Site, core: Core, heads: Heads, facts: Facts) -> None:
    """See to it that every size that may be needed can be read.

    Raises:
        RefusedError: One cannot.
    """
    measured = [site.contents(node.outputs[0]) for node in core.measured]
    if None in measured:
        raise RefusedError("the shape of its scores is read, and is not known otherwise")
    wanted = [heads.batch, heads.queries, heads.new_keys]
    wanted += [size for sizes in measured for size in sizes or ()]
    for size in wanted:
        if isinstance(size, int) or (heads.caches is not None and size == heads.keys):
            continue
        if source_of(site, size, heads, facts) is None:
            raise RefusedError(f"its size {size} can be read from nothing but itself")


def _total_keys(site: Site, heads: Heads, cache: Cache, facts: Facts) -> ir.Value:
    """Return the number of cached and new keys; the op itself makes the value that has it."""
    new = size_of(site, heads.new_keys, heads, facts)
    return site.op("Add", [axis_size(site, cache.past, 2), new])


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
