"""Nodes whose output, channel for channel, is a function of their inputs' channels."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.operators import where
from ortkit.ops.rotary.steps import CHANNEL, Labels, channel_axes, operand_labels, slice_ranges
from ortkit.rewrite.site import Site

#: Above this a product with a constant is a projection, whose columns nobody compares.
SMALL = 1 << 16

ELEMENTWISE = where(access="elementwise") - {"Identity", "Neg"}
"""Element by element, with operands that broadcast; the other two are linear, which says more."""


@dataclass(frozen=True)
class Function:
    """A function by its key: the same key and channels make the same result."""

    inputs: tuple[tuple[ir.Value, Labels], ...]
    key: Hashable


def functional_step(site: Site, value: ir.Value, labels: Labels) -> Function | None:
    """Return what each channel of `value` is a function of; None if it is not known."""
    node = value.producer()
    if node is None or node.domain != "":
        return None
    here = Site(site.scope, node, site.pass_name)
    if node.op_type in ELEMENTWISE:
        return _elementwise(here, value, labels)
    rule = RULES.get(node.op_type)
    return None if rule is None else rule(here, value, labels)


def _elementwise(site: Site, value: ir.Value, labels: Labels) -> Function | None:
    inputs: list[tuple[ir.Value, Labels]] = []
    for source in site.node.inputs:
        below = None if source is None else operand_labels(site, source, value, labels)
        if source is None or below is None:
            return None
        inputs.append((source, below))
    attributes = tuple(sorted((name, str(a.value)) for name, a in site.node.attributes.items()))
    return Function(tuple(inputs), (site.node.op_type, attributes))


def _own(site: Site, axis: int) -> str:
    """Return the label of an axis that ends at this node."""
    return f"{id(site.node)}:{axis}"


def _gather(site: Site, _value: ir.Value, labels: Labels) -> Function | None:
    source, rank, index_rank = (
        site.input(0),
        site.rank(site.input(0)),
        site.rank(site.input(1)),
    )
    if source is None or rank is None or index_rank is None:
        return None
    axis = site.int("axis", 0) % rank
    looked_up = labels[axis : axis + index_rank]
    if CHANNEL in looked_up:
        return None
    below = (*labels[:axis], _own(site, axis), *labels[axis + index_rank :])
    return Function(((source, below),), ("Gather", site.node, looked_up))


def _gather_nd(site: Site, _value: ir.Value, labels: Labels) -> Function | None:
    source, rank, indices = site.input(0), site.rank(site.input(0)), site.shape(site.input(1))
    if source is None or rank is None or not indices or site.int("batch_dims", 0):
        return None
    depth, looked_up = indices[-1], labels[: len(indices) - 1]
    if not isinstance(depth, int) or depth >= rank or CHANNEL in looked_up:
        return None
    below = (*(_own(site, axis) for axis in range(depth)), *labels[len(indices) - 1 :])
    return Function(((source, below),), ("GatherND", site.node, looked_up))


def _slice(site: Site, _value: ir.Value, labels: Labels) -> Function | None:
    source, axes = site.input(0), site.axes(3)
    if source is None or axes is None:
        ranges = slice_ranges(site, len(labels))
        cut = set(ranges or ())
    else:
        cut = {axis % len(labels) for axis in axes}
    if source is None or not cut or any(labels[axis] == CHANNEL for axis in cut):
        return None
    below = tuple(_own(site, i) if i in cut else label for i, label in enumerate(labels))
    return Function(((source, below),), ("Slice", site.node, labels))


def _split(site: Site, value: ir.Value, labels: Labels) -> Function | None:
    source, axis = site.input(0), site.int("axis", 0) % len(labels)
    if source is None or labels[axis] == CHANNEL:
        return None
    below = (*labels[:axis], _own(site, axis), *labels[axis + 1 :])
    return Function(((source, below),), ("Split", value, labels))


def _matmul(site: Site, _value: ir.Value, labels: Labels) -> Function | None:
    if len(labels) < 2 or any(axis < len(labels) - 2 for axis in channel_axes(labels)):
        return None
    rows, columns = labels[-2] == CHANNEL, labels[-1] == CHANNEL
    if rows == columns:
        return None
    source = site.input(0 if rows else 1)
    shape = site.shape(source)
    if source is None or shape is None or len(shape) < 2:
        return None
    is_constant = site.scope.is_constant(source) and site.array(source, SMALL) is not None
    if not is_constant and shape[-1 if rows else -2] != 1:
        return None
    batch = len(shape) - 2
    if batch > len(labels) - 2:
        return None
    own = tuple(_own(site, axis) for axis in range(batch))
    ends = (CHANNEL, _own(site, -1)) if rows else (_own(site, -2), CHANNEL)
    return Function(((source, (*own, *ends)),), ("MatMul", site.node, labels))


def _einsum(site: Site, _value: ir.Value, labels: Labels) -> Function | None:
    left, arrow, right = site.string("equation", "").replace(" ", "").partition("->")
    letters = left.split(",")
    if not arrow or "." in left or len(channel_axes(labels)) != 1 or len(right) != len(labels):
        return None
    channel = right[channel_axes(labels)[0]]
    inputs: list[tuple[ir.Value, Labels]] = []
    for index, axes in enumerate(letters):
        source = site.input(index)
        if source is None or len(set(axes)) != len(axes):
            return None
        below = tuple(CHANNEL if a == channel else _own(site, ord(a)) for a in axes)
        inputs.append((source, below))
    return Function(tuple(inputs), ("Einsum", site.node, labels))


RULES: dict[str, Callable[[Site, ir.Value, Labels], Function | None]] = {
    "Einsum": _einsum,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "MatMul": _matmul,
    "Slice": _slice,
    "Split": _split,
}
