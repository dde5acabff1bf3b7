"""simplify-gather-nd: a GatherND that takes everything in order is a Reshape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.graph.dims import Size
from ortkit.graph.reshape import RESHAPES, reshape_target
from ortkit.rewrite.axes import Layout, track
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: No exporter puts more between a Range and the indices.
LONGEST = 8


@dataclass(frozen=True)
class SimplifyGatherNd(NodePass):
    """Read a value as it is where indices only count along its axes.

    Before:
        i = Unsqueeze(Expand([[[[0]]]], shape), [-1]);  r = Range(0, n, 1)
        j = Unsqueeze(Expand(Unsqueeze(r, [0, 1, 2]), shape), [-1])
        y = GatherND(mask, Concat<axis = -1>(i, j))         # mask: [1, n], y: [1, 1, 1, n]
    After:
        y = Reshape(mask, [1, 1, 1, n])

    So torch's exporter writes masks that are indexed by grids of positions.

    Skips:
        * Indices that do not count from zero by one, or do not count to the end of an axis.
        * Axes that come in another order, or are repeated.

    Source:
        ONNX GatherND-11 ... 13: the last axis of the indices holds one index into each axis.
    """

    name: ClassVar[str] = "simplify-gather-nd"
    ops: ClassVar[Sequence[str]] = ("GatherND",)

    def rewrite(self, site: Site) -> None:
        shape, after = site.shape(site.input(0)), site.shape(site.output)
        grid = site.producer(site.input(1), "Concat")
        if grid is None or shape is None or after is None or site.int("batch_dims", 0):
            return
        rank = len(after)
        at_grid = Site(site.scope, grid, self.name)
        if at_grid.int("axis", 0) not in (-1, rank) or len(grid.inputs) != len(shape):
            return
        places = [
            _counted_axis(site, value, size, rank)
            for value, size in zip(grid.inputs, shape, strict=True)
        ]
        counted = [place for place in places if place is not None and place >= 0]
        if None in places or counted != sorted(set(counted)):
            site.miss("its indices do not count along the axes in their order")
            return
        if any(size != 1 for axis, size in enumerate(after) if axis not in counted):
            site.miss("it repeats what it takes")
            return
        target = reshape_target(shape, after)
        if target is None:
            site.miss("a Reshape of it would have several symbolic sizes")
        elif site.claim("everything"):
            site.replace(site.op("Reshape", [site.input(0), site.constant(target)]))


def _counted_axis(site: Site, value: ir.Value | None, size: Size, rank: int) -> int | None:
    """Return the output axis along which an index counts to `size`.

    -1 where it is always 0 and `size` is 1; None where it does neither.
    """
    chain: list[ir.Node] = []
    while (node := site.producer(value, *RESHAPES, "Expand")) and len(chain) < LONGEST:
        chain.insert(0, node)
        value = node.inputs[0]
    array = site.array(value, 1 << 16)
    if size == 1:
        return -1 if array is not None and not array.any() else None
    shape = site.shape(value)
    if shape is None or not (_counts(site, value, size) if array is None else _runs(array, size)):
        return None
    layout = track(site.scope.shapes, chain, Layout.of(shape))
    own = [] if layout is None else [group for group in layout.source if group]
    if layout is None or len(own) != 1:
        return None
    axes = [axis for axis, group in enumerate(layout.result) if group == own[0]]
    return axes[0] if len(axes) == 1 and axes[0] < rank else None


def _counts(site: Site, value: ir.Value | None, size: Size) -> bool:
    """Say whether this is Range(0, size, 1)."""
    counter = site.producer(value, "Range")
    numbers = [] if counter is None else [site.contents(each) for each in counter.inputs]
    return numbers == [(0,), (size,), (1,)]


def _runs(array: np.ndarray, size: Size) -> bool:
    return array.size == size and bool((array.reshape(-1) == np.arange(array.size)).all())
