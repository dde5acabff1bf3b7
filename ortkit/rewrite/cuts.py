"""What Slice, Split and Gather take from a value along one axis."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortkit.rewrite.site import Site

#: Before this opset what a Slice cuts is said by attributes, and there is no step.
INPUTS_SINCE = 10
#: From here on the sizes of a Split are an input.
SIZES_SINCE = 13


@dataclass(frozen=True)
class Cut:
    """The elements `places` of `source` along `axis`, of `size` there."""

    source: ir.Value
    axis: int
    size: int
    places: range


def cut_of(site: Site, value: ir.Value | None) -> Cut | None:
    """Return how a Slice or Split of the site's graph makes `value`; None if it is unclear.

    A Slice along several axes is none of these, and neither is one of an axis of unknown size.
    """
    node = site.producer(value, "Slice", "Split")
    if node is None or node.graph is not site.node.graph or value is None:
        return None
    at = Site(site.scope, node, site.pass_name)
    if node.op_type == "Split":
        return _part(at, value)
    return slice_cut(at)


def slice_cut(site: Site) -> Cut | None:
    """Return what the site's Slice cuts along one axis."""
    steps: tuple[int, ...] | None = (1,)
    if site.opset < INPUTS_SINCE:
        starts, ends = site.ints("starts"), site.ints("ends")
    else:
        starts, ends = site.axes(1), site.axes(2)
        steps = steps if site.input(4) is None else site.axes(4)
    axes = site.axes(3) if site.has_axes(3) else (0,)
    source, shape = site.input(0), site.shape(site.input(0))
    if starts is None or ends is None or steps is None or axes is None:
        return None
    if source is None or not shape:
        return None
    if not len(starts) == len(ends) == len(axes) == len(steps) == 1:
        return None
    axis = axes[0] % len(shape)
    size = shape[axis]
    if not isinstance(size, int):
        return None
    # Both clamp what lies outside alike.
    cut = slice(starts[0], ends[0], steps[0])
    return Cut(source, axis, size, range(*cut.indices(size)))


def _part(site: Site, value: ir.Value) -> Cut | None:
    source, shape = site.input(0), site.shape(site.input(0))
    if source is None or not shape:
        return None
    axis = site.int("axis", 0) % len(shape)
    size, start = shape[axis], 0
    for part in site.node.outputs:
        made = site.shape(part)
        length = None if made is None else made[axis]
        if not isinstance(length, int) or not isinstance(size, int):
            return None
        if part is value:
            return Cut(source, axis, size, range(start, start + length))
        start += length
    return None
