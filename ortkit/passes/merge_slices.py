"""merge-slices: one Slice for two that cut along different axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: Start, end and step along one axis.
Cut = tuple[int, int, int]
#: Before this opset what a Slice cuts is said by attributes, and there is no step.
INPUTS_SINCE = 10


@dataclass(frozen=True)
class MergeSlices(NodePass):
    """Cut along all axes at once.

    Before:
        t = Slice(x, [0], [8], [2], [2]);  y = Slice(t, [0], [8], [3], [2])
    After:
        y = Slice(x, [0, 0], [8, 8], [2, 3], [2, 2])

    Several Slices of one Slice all become Slices of `x`, and none is added.

    Skips:
        * Two cuts along one axis, and cuts that are not constant.
        * A first Slice that anything else reads: it would stay.

    Source:
        ONNX Slice-1 ... 13: what is cut off along one axis does not depend on the others.
    """

    name: ClassVar[str] = "merge-slices"
    ops: ClassVar[Sequence[str]] = ("Slice",)

    def rewrite(self, site: Site) -> None:
        inner = site.producer(site.input(0), "Slice")
        if inner is None or inner.graph is not site.node.graph:
            return
        first, second = _cuts(Site(site.scope, inner, self.name)), _cuts(site)
        if first is None or second is None or first.keys() & second.keys():
            site.miss("the cuts are along one axis, or not constant")
            return
        if not all(_follows(site, node, first) for node in inner.outputs[0].consumers()) or (
            inner.outputs[0].is_graph_output()
        ):
            site.miss("others read the first Slice")
            return
        if site.claim("axes"):
            site.replace(_slice(site, inner.inputs[0], {**first, **second}))


def _follows(site: Site, node: ir.Node, first: Mapping[int, Cut]) -> bool:
    """Say whether `node` is a Slice that can be merged with one that makes these cuts."""
    if node.domain != "" or node.op_type != "Slice" or node.graph is not site.node.graph:
        return False
    cuts = _cuts(Site(site.scope, node, site.pass_name))
    return cuts is not None and not cuts.keys() & first.keys()


def _cuts(site: Site) -> dict[int, Cut] | None:
    """Return what is cut by axis, None where it is not known."""
    if site.opset < INPUTS_SINCE:
        starts, ends, steps = site.ints("starts"), site.ints("ends"), None
    else:
        starts, ends, steps = (site.axes(index) for index in (1, 2, 4))
        if site.input(4) is not None and steps is None:
            return None
    axes = site.axes(3)
    if starts is None or ends is None or (axes is None and site.has_axes(3)):
        return None
    axes, rank = axes or tuple(range(len(starts))), site.rank(site.input(0))
    steps = steps or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return None
    if min(axes, default=0) < 0:
        if not rank:
            return None
        axes = tuple(axis % rank for axis in axes)
    return dict(zip(axes, zip(starts, ends, steps, strict=True), strict=True))


def _slice(site: Site, x: ir.Value | None, cuts: Mapping[int, Cut]) -> ir.Value:
    axes = sorted(cuts)
    starts, ends, steps = zip(*(cuts[axis] for axis in axes), strict=True)
    if site.opset < INPUTS_SINCE:
        return site.op("Slice", [x], {"starts": starts, "ends": ends, "axes": axes})
    numbers = [starts, ends, axes] if set(steps) == {1} else [starts, ends, axes, steps]
    return site.op("Slice", [x, *(site.constant(each) for each in numbers)])
