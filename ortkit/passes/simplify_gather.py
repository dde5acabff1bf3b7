"""simplify-gather: the cheapest of Gather, Slice, Split and Concat for constant places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.index_ranges import counted_axis
from ortkit.analysis.reshape_form import reshape_form
from ortkit.analysis.slices import INPUTS_SINCE, Cut, cut_of
from ortkit.graph.shapes.reshape import RESHAPES, static
from ortkit.graph.symbolic.dims import Size, divide_exactly
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: With shorter runs than this, copying them one by one takes longer than cutting does.
RUN = 16
#: Longer lists of places stay ranges.
LONGEST = 1 << 16


@dataclass(frozen=True)
class SimplifyGather(NodePass):
    """Take constant places along an axis with one node.

    Before:
        a = Gather<axis = 1>(x, [4, 5, 6])
        b = Squeeze(Slice(x, [2], [3], [1]), [1])
        c = Concat<axis = 1>(Slice(x, [3], [9], [1]), Slice(x, [0], [3], [1]))
        d = Gather<axis = 0>(z, 0)                       # z: [1, n]
        e = Gather<axis = 0>(Reshape(m, [-1]), Add(Mul(row, n), column))       # m: [k, n]
    After:
        a = Slice(x, [4], [7], [1])
        b = Gather<axis = 1>(x, 2)
        c = Gather<axis = 1>(x, [3, 4, 5, 6, 7, 8, 0, 1, 2])
        d = Reshape(z, [-1])
        e = m

    Parts of a Concat that have no elements are left out. In `e` row and column count from zero to
    `k` and `n`: so torch's exporter indexes masks.

    A roll as two Slices and a Concat takes 1.8 times as long as one Gather (56 x 56 x 96 and
    14 x 14 x 384 floats, ONNX Runtime 1.31.1 on a CPU). The others take as long as before.

    Skips:
        * Axes of unknown size, and cuts along several axes.
        * Parts that others read: they would stay.
        * Concat along an axis with short runs after it, below level 3.

    Source:
        ONNX Gather-1 ... 13, Slice-1 ... 13, Split-2 ... 18.
    """

    name: ClassVar[str] = "simplify-gather"
    ops: ClassVar[Sequence[str]] = ("Gather", "Concat", *RESHAPES)

    def rewrite(self, site: Site) -> None:
        if site.node.op_type == "Gather":
            _gather(site)
        elif site.node.op_type == "Concat":
            _concat(site)
        else:
            _squeeze(site)


def _gather(site: Site) -> None:
    """Take consecutive places by a Slice, and the only element of an axis by a Reshape."""
    shape, indices = site.shape(site.input(0)), site.array(site.input(1), LONGEST)
    if indices is None:
        _everything(site)
        return
    if not shape or indices.ndim > 1 or site.scope.is_constant(site.input(0)):
        return
    axis = site.int("axis", 0) % len(shape)
    size = shape[axis]
    if indices.ndim == 0:
        form = None if size != 1 else reshape_form(site, shape, _without(shape, axis))
        if form is not None and site.claim("only-place"):
            site.replace(form.emit(site, site.input(0)))
        return
    if not isinstance(size, int) or size == 0 or indices.size == 0 or site.opset < INPUTS_SINCE:
        return
    flat = [int(index) % size for index in indices]
    step = 1 if len(flat) == 1 else flat[1] - flat[0]
    if step == 0 or flat != list(range(flat[0], flat[0] + step * len(flat), step)):
        return
    if flat == list(range(size)):
        if (x := site.input(0)) is not None and site.can_replace(x) and site.claim("all-places"):
            site.replace(x)
        return
    if step > 0 and site.claim("range"):
        numbers = [[flat[0]], [flat[-1] + 1], [axis], *([[step]] if step > 1 else [])]
        site.replace(site.op("Slice", [site.input(0), *map(site.constant, numbers)]))


def _everything(site: Site) -> None:
    """Read a value as it is where the index is row * width + column, each of them counted."""
    index = site.producer(site.input(1), "Add")
    whole, after = site.shape(site.input(0)), site.shape(site.output)
    if index is None or not whole or after is None or site.int("axis", 0):
        return
    if any(size != 1 for size in whole[1:]) or not _counts_rows(site, index, whole[0]):
        return
    joined = site.producer(site.input(0), *RESHAPES)
    source = site.input(0) if joined is None else joined.inputs[0]
    shape = site.shape(source)
    form = None if shape is None else reshape_form(site, shape, after)
    if form is None:
        site.miss("a Reshape of it would have several symbolic sizes")
    elif site.claim("everything"):
        site.replace(form.emit(site, source))


def _counts_rows(site: Site, index: ir.Node, size: Size) -> bool:
    """Say whether a sum counts all places of a matrix of `size` elements in their order."""
    indices = site.shape(index.outputs[0])
    for column, scaled in (index.inputs, index.inputs[::-1]):
        product = site.producer(scaled, "Mul")
        for row, factor in () if product is None else (product.inputs, product.inputs[::-1]):
            width = site.contents(factor)
            rows = (
                divide_exactly(size, width[0]) if width is not None and len(width) == 1 else None
            )
            if rows is None or width is None or indices is None:
                continue
            first, second = _from_end(site, row, rows), _from_end(site, column, width[0])
            kept = [each for each in indices if each != 1]
            if first < second < 0 and kept == [rows, width[0]]:
                return True
    return False


def _from_end(site: Site, value: ir.Value | None, size: Size) -> int:
    """Return the axis along which `value` counts to `size`, negative; 0 if it does not."""
    rank = site.rank(value)
    axis = None if rank is None else counted_axis(site, value, size, rank)
    return 0 if axis is None or axis < 0 or rank is None else axis - rank


def _squeeze(site: Site) -> None:
    """Take one place, and its axis away, by a Gather."""
    value, after = site.input(0), site.shape(site.output)
    cut = cut_of(site, value)
    if cut is None or value is None or after is None or len(cut.indices) != 1:
        return
    before = site.shape(cut.source)
    if before is None or _without(before, cut.axis) != tuple(after):
        return
    node = value.producer()
    if node is None or not all(_is_squeezed(site, part, cut, before) for part in node.outputs):
        site.miss("others read the part that is cut out")
        return
    if site.claim("one-place"):
        index_value = site.constant(np.array(cut.indices[0], np.int64))
        site.replace(site.op("Gather", [cut.source, index_value], {"axis": cut.axis}))


def _is_squeezed(site: Site, part: ir.Value, cut: Cut, shape: Sequence[Size]) -> bool:
    """Say whether all that reads `part` takes its axis away."""
    made = site.shape(part)
    if part.is_graph_output() or made is None or made[cut.axis] != 1:
        return False
    wanted = _without(shape, cut.axis)
    return all(
        node.domain == ""
        and node.op_type in RESHAPES
        and index == 0
        and site.shape(node.outputs[0]) == wanted
        for node, index in part.uses()
    )


def _without(shape: Sequence[Size], axis: int) -> tuple[Size, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _concat(site: Site) -> None:
    """Take the places of several parts of one value at once."""
    if _without_empty(site):
        return
    cuts = [cut_of(site, value) for value in site.node.inputs]
    known = [cut for cut in cuts if cut is not None]
    shape = site.shape(site.output)
    if len(known) < max(len(cuts), 2) or not shape:
        return
    first, axis = known[0], site.int("axis", 0) % len(shape)
    if any(cut.source is not first.source or cut.axis != axis for cut in known):
        return
    indices = [index for cut in known for index in cut.indices]
    if indices == list(range(first.size)):
        if site.can_replace(first.source) and site.claim("all-parts"):
            site.replace(first.source)
        return
    if not all(_is_read_here(site, value) for value in site.node.inputs):
        site.miss("others read the parts")
        return
    run = static(shape[axis + 1 :])
    if site.scope.options.level < 3 and (run is None or np.prod(run) < RUN):
        site.miss("the runs after the axis are short, or of unknown length")
    elif len(indices) <= LONGEST and site.claim("parts"):
        site.replace(site.op("Gather", [first.source, site.constant(indices)], {"axis": axis}))


def _without_empty(site: Site) -> bool:
    """Leave parts without elements out of a Concat, unless all are."""
    shape = site.shape(site.output)
    if not shape:
        return False
    axis = site.int("axis", 0) % len(shape)
    shapes = [site.shape(value) for value in site.node.inputs]
    full = [
        value
        for value, each in zip(site.node.inputs, shapes, strict=True)
        if each is None or len(each) != len(shape) or each[axis] != 0
    ]
    if not full or len(full) == len(shapes):
        return False
    if len(full) > 1:
        if site.claim("empty-part"):
            site.replace(site.op("Concat", full, {"axis": axis}))
    elif full[0] is not None and site.can_replace(full[0]) and site.claim("empty-part"):
        site.replace(full[0])
    return True


def _is_read_here(site: Site, value: ir.Value | None) -> bool:
    """Say whether the node that makes `value` goes if this Concat goes."""
    node = None if value is None else value.producer()
    return node is not None and all(
        not part.is_graph_output() and set(part.consumers()) <= {site.node}
        for part in node.outputs
    )
