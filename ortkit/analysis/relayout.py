"""Nodes that bring a value into another layout: the fewest of Reshape, Transpose, Reshape."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortkit.analysis.axes import Layout, Moves, moves, targets
from ortkit.rewrite.site import Site

#: From here on a Reshape has its target as an input.
TARGET_SINCE = 5


@dataclass(frozen=True)
class Relayout:
    """A way that can be written down: its moves, with the constant targets of its Reshapes."""

    moves: Moves
    first: tuple[int, ...] | None
    last: tuple[int, ...] | None

    @staticmethod
    def nothing() -> Relayout:
        """Return the way to a layout that a value has already."""
        return Relayout(Moves(), None, None)

    @property
    def cost(self) -> tuple[int, int]:
        """How many nodes it takes, and how many of them move data."""
        return self.moves.count, int(self.moves.perm is not None)

    def emit(self, site: Site, value: ir.Value) -> ir.Value:
        """Insert the nodes before the site's and return the result: `value` if there are none."""
        if self.first is not None:
            value = site.op("Reshape", [value, site.constant(self.first)])
        if self.moves.perm is not None:
            value = site.op("Transpose", [value], {"perm": self.moves.perm})
        if self.last is not None:
            value = site.op("Reshape", [value, site.constant(self.last)])
        return value


def relayout(site: Site, layout: Layout) -> Relayout | None:
    """Return the fewest nodes that make the result of a layout from its source.

    None where the source is repeated, or where no way has constant targets in its Reshapes.
    """
    for way in moves(layout):
        if way.perm is None and way.after is None:
            return Relayout(way, None, None)
        if site.opset < TARGET_SINCE and (way.before or way.after) is not None:
            continue
        found = targets(layout.source_shape, way)
        if found is not None:
            return Relayout(way, *found)
    return None
