"""simplify-gather-nd: a GatherND that takes everything in order is a Reshape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortkit.analysis.index_ranges import counted_axis
from ortkit.analysis.reshape_form import reshape_form
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


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
        axes = [
            counted_axis(site, value, size, rank)
            for value, size in zip(grid.inputs, shape, strict=True)
        ]
        counted = [index for index in axes if index is not None and index >= 0]
        if None in axes or counted != sorted(set(counted)):
            site.miss("its indices do not count along the axes in their order")
            return
        if any(size != 1 for axis, size in enumerate(after) if axis not in counted):
            site.miss("it repeats what it takes")
            return
        form = reshape_form(site, shape, after)
        if form is None:
            site.miss("a Reshape of it would have several symbolic sizes")
        elif site.claim("everything"):
            site.replace(form.emit(site, site.input(0)))
