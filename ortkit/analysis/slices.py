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
    """The elements `indices` of `source` along `axis`, of `size` there."""

    source: ir.Value
    axis: int
    size: int
    indices: range


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
    source, indices = site.input(0), _ranges(site)
    if source is None or indices is None or len(indices) != 1:
        return None
    [(axis, (size, indices_of_axis))] = indices.items()
    return Cut(source, axis, size, indices_of_axis)


def ranges_by_axis(site: Site, value: ir.Value | None) -> tuple[ir.Value, dict[int, range]] | None:
    """Return what a Slice of the site's graph takes, by axis, to make `value`; None if unclear."""
    node = site.producer(value, "Slice")
    if node is None or node.graph is not site.node.graph or node.inputs[0] is None:
        return None
    indices = _ranges(Site(site.scope, node, site.pass_name))
    if not indices:
        return None
    return node.inputs[0], {
        axis: indices_of_axis for axis, (_, indices_of_axis) in indices.items()
    }


def _ranges(site: Site) -> dict[int, tuple[int, range]] | None:
    """Return the size of each axis that the site's Slice cuts, and what it takes of it."""
    steps: tuple[int, ...] | None = None
    if site.opset < INPUTS_SINCE:
        starts, ends = site.ints("starts"), site.ints("ends")
    else:
        starts, ends = site.axes(1), site.axes(2)
        if site.input(4) is not None and (steps := site.axes(4)) is None:
            return None
    shape = site.shape(site.input(0))
    if starts is None or ends is None or not shape:
        return None
    axes = site.axes(3) if site.has_axes(3) else tuple(range(len(starts)))
    steps = steps or (1,) * len(starts)
    if axes is None or not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        return None
    if any(not isinstance(each, int) for each in (*starts, *ends, *axes, *steps)):
        return None
    if len({axis % len(shape) for axis in axes}) < len(starts):
        return None
    indices = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = shape[axis % len(shape)]
        if not isinstance(size, int):
            return None
        # ONNX and Python clamp what lies outside alike.
        indices[axis % len(shape)] = size, range(*slice(start, end, step).indices(size))
    return indices


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
