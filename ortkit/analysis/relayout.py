"""Nodes that bring a value into another layout: the fewest of Reshape, Transpose, Reshape."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortkit.analysis.axes import Layout, Moves, moves
from ortkit.analysis.reshape_form import ReshapeForm, reshape_form
from ortkit.graph.symbolic.dims import Size
from ortkit.rewrite.site import Site

#: From here on a Reshape has its target as an input.
TARGET_SINCE = 5


@dataclass(frozen=True)
class Relayout:
    """A way that can be written down: its moves, with the nodes of its Reshapes."""

    moves: Moves
    first: ReshapeForm | None
    last: ReshapeForm | None

    @staticmethod
    def nothing() -> Relayout:
        """Return the way to a layout that a value has already."""
        return Relayout(Moves(), None, None)

    @property
    def cost(self) -> tuple[int, int]:
        """How many nodes it takes, and how many of them move data."""
        return self.moves.count, int(self.moves.perm is not None)

    @property
    def refuses_empty(self) -> bool:
        """Whether ONNX Runtime may refuse an empty value in one of its Reshapes."""
        return any(form is not None and form.refuses_empty for form in (self.first, self.last))

    def emit(self, site: Site, value: ir.Value) -> ir.Value:
        """Insert the nodes before the site's and return the result: `value` if there are none."""
        if self.first is not None:
            value = self.first.emit(site, value)
        if self.moves.perm is not None:
            value = site.op("Transpose", [value], {"perm": self.moves.perm})
        if self.last is not None:
            value = self.last.emit(site, value)
        return value


def relayout(site: Site, layout: Layout, *, takes_empty: bool = True) -> Relayout | None:
    """Return the fewest nodes that make the result of a layout from its source.

    Args:
        site: Where the nodes would stand.
        layout: The source and the result.
        takes_empty: Whether no node may refuse a value with a size of zero.

    Returns:
        None where the source is repeated, or where no way has constant targets in its Reshapes.
    """
    for way in moves(layout):
        if site.opset < TARGET_SINCE and (way.before or way.after) is not None:
            continue
        found = _written(site, layout.source_shape, way)
        if found is not None and not (takes_empty and found.refuses_empty):
            return found
    return None


def _written(site: Site, shape: tuple[Size, ...], way: Moves) -> Relayout | None:
    """Return the nodes of a way from `shape`, None where a target is not constant."""
    first = last = None
    if way.before is not None:
        first, shape = reshape_form(site, shape, way.before), way.before
    if way.perm is not None:
        shape = tuple(shape[axis] for axis in way.perm)
    if way.after is not None:
        last = reshape_form(site, shape, way.after)
    is_written = (first is None) == (way.before is None) and (last is None) == (way.after is None)
    return Relayout(way, first, last) if is_written else None
