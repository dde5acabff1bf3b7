"""Where the rows of a fixed batch are in the values of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortkit.graph.symbolic.dims import Size, divide_exactly, multiply, product


@dataclass(frozen=True)
class Rows:
    """The axis of a value that holds the batch: it has outer * batch * inner elements."""

    axis: int
    outer: Size = 1
    inner: Size = 1

    def size(self, batch: Size) -> Size:
        """Return the size of the axis for a batch."""
        return multiply(multiply(self.outer, batch), self.inner)

    def at(self, axis: int) -> Rows:
        """Return the same on another axis."""
        return Rows(axis, self.outer, self.inner)

    @property
    def is_plain(self) -> bool:
        """Whether the axis holds nothing but the batch."""
        return self.outer == 1 and self.inner == 1


@dataclass(frozen=True)
class Sizes:
    """A shape, or numbers computed from a shape, that the size of the batch is in."""

    index: int | None = None
    """The only element that the size of the batch is in; None: it may be in any of them."""


@dataclass(frozen=True)
class Mixed:
    """Why rows of the batch are not independent, or not known to be."""

    reason: str


MIXES = Mixed("it mixes the rows of the batch")
UNALIGNED = Mixed("its inputs have the batch on different axes")
CONSTANT = Mixed("a constant has a row for each element of the batch")
UNKNOWN = Mixed("its use of the batch is not known")

State = Rows | Sizes | None
"""None: a value that does not depend on the batch."""


def relocated(
    shape: Sequence[Size], rows: Rows, wanted: Sequence[Size], batch: Size
) -> Rows | None:
    """Return where a Reshape puts the rows; None if it takes them apart.

    Args:
        shape: The shape of the value.
        rows: Its batch.
        wanted: The shape of the result, with the same elements in the same order.
        batch: The size of the batch.
    """
    before = multiply(product(shape[: rows.axis]), rows.outer)
    after = multiply(rows.inner, product(shape[rows.axis + 1 :]))
    for axis, size in enumerate(wanted):
        outer = divide_exactly(before, product(wanted[:axis]))
        inner = None if outer is None else divide_exactly(size, multiply(outer, batch))
        if outer is None or inner is None:
            continue
        if multiply(inner, product(wanted[axis + 1 :])) == after:
            return Rows(axis, outer, inner)
    return None
