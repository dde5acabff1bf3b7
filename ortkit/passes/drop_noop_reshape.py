"""drop-noop-reshape: remove layout ops whose result has the shape and order of their input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortkit.analysis.permutation import moves_only_ones
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class DropNoopReshape(NodePass):
    """Remove Reshape, Flatten, Squeeze, Unsqueeze, Expand, Tile and Transpose that do nothing.

    Before:
        t = Reshape(x, [0, -1, 64])    # x: [batch, seq, 64]
        y = Neg(t)
    After:
        y = Neg(x)

    Skips:
        * Shapes that cannot be proven equal.

    Source:
        ONNX Reshape-1 ... 25, Expand-8 ... 13, Tile-1 ... 13, Transpose-1 ... 25.
    """

    name: ClassVar[str] = "drop-noop-reshape"
    ops: ClassVar[Sequence[str]] = (
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Expand",
        "Tile",
        "Transpose",
    )

    def rewrite(self, site: Site) -> None:
        value = site.input(0)
        if value is None:
            return
        if site.node.op_type == "Transpose":
            if not _keeps_order(site):
                return
        elif not _same_shape(site):
            return
        if site.can_replace(value) and site.claim(site.node.op_type.lower()):
            site.replace(value)


def _same_shape(site: Site) -> bool:
    before, after = site.shape(site.input(0)), site.shape(site.output)
    return before is not None and before == after


def _keeps_order(site: Site) -> bool:
    """Say whether a Transpose moves no axis that is longer than one."""
    perm, shape = site.perm(), site.shape(site.input(0))
    if perm is None:
        return False
    if tuple(sorted(perm)) == perm:
        return True
    # Axes of length one may go anywhere as long as the result has the same shape.
    return (
        shape is not None
        and moves_only_ones(perm, shape)
        and tuple(shape[axis] for axis in perm) == shape
    )
