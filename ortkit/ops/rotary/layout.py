"""How a rotation is laid out: which axes are positions, which heads, and what is reshaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.graph.symbolic.dims import Size
from ortkit.ops.rotary.channels import LabeledValue
from ortkit.rewrite.site import Site


@dataclass(frozen=True, eq=False)
class Layout:
    """What the operator reads, [P, Q, H * D] or [P, H, Q, D], and the way back.

    P and Q are the axes that angles may vary along: as a rule batch and sequence.
    """

    value: ir.Value
    """The rotated value in the graph, or the 3-D value that it is a view of."""
    is_flat: bool
    """Whether heads and channels are one axis, the last."""
    heads: int | None
    """None: the number of heads is the same as the length of the head axis of a 4-D input."""
    positions: tuple[int | None, int]
    """The axes P and Q of the result; None: an axis of length one that is added."""
    sizes: tuple[Size, Size]
    into: tuple[int, ...] | None
    """How `value` is reshaped first."""
    back: tuple[int, ...] | ir.Node | None
    """How the rotated value is reshaped after; a Reshape: as that one does."""
    perm: tuple[int, ...] | None
    """How the result is transposed last."""


def choose_layout(
    site: Site, homes: Sequence[LabeledValue], live: frozenset[int], width: int
) -> Layout | None:
    """Return the layout that takes least, None if angles vary along other axes.

    Args:
        site: Any site in the scope.
        homes: Values that hold the rotated channels, each with all axes of the result.
        live: The axes of the result along which angles vary.
        width: Channels that are rotated or pass; a home may have half of them.
    """
    found = [
        one for candidate in homes if (one := _layout(site, candidate, live, width)) is not None
    ]
    return min(found, key=_cost, default=None)


def _cost(layout: Layout) -> tuple[int, bool]:
    """Three-dimensional first: attention wants it so."""
    if layout.is_flat and layout.into is None:
        return 0, layout.perm is not None
    return (1 if layout.is_flat else 2), layout.into is not None


def _layout(
    site: Site, candidate: LabeledValue, live: frozenset[int], width: int
) -> Layout | None:
    shape = site.shape(candidate.value)
    if shape is None:
        return None
    order = [label for label in candidate.labels if isinstance(label, int)]
    along = {order.index(axis) for axis in live}
    outer, is_split = shape[: len(order)], len(shape) > len(order) + 1
    whole = (*[0] * len(order), width) if is_split else None
    perm = (*(order.index(axis) for axis in range(len(order))), len(order))
    permutation = None if perm == tuple(range(len(perm))) else perm
    value = candidate.value
    if len(outer) == 3 and along <= {0, 2} and not along <= {0}:
        heads = outer[1] if isinstance(outer[1], int) else None
        positions, sizes = (order[0], order[2]), (outer[0], outer[2])
        return Layout(value, False, heads, positions, sizes, whole, None, permutation)
    if len(outer) == 2 and along and not along <= {0}:
        return Layout(
            value, True, 1, (order[0], order[1]), (outer[0], outer[1]), whole, None, permutation
        )
    if len(outer) <= 2 and along <= {0}:
        heads = _product(outer[1:])
        if heads is None:
            return None
        into, back = (1, -1, heads * width), (-1, *[heads] * (len(outer) - 1), width)
        return Layout(value, True, heads, (None, order[0]), (1, outer[0]), into, back, permutation)
    heads = _product(outer[2:])
    if len(outer) < 3 or not along <= {0, 1} or heads is None:
        return None
    positions, sizes = (order[0], order[1]), (outer[0], outer[1])
    heads_of = tuple(size for size in outer[2:] if isinstance(size, int))
    into, back = (0, 0, heads * width), (0, 0, *heads_of, width)
    source = _flat_source(site, value, (outer[0], outer[1], heads * width))
    if source is None:
        return Layout(value, True, heads, positions, sizes, into, back, permutation)
    as_before = value.producer() if len(outer) == 3 and not is_split else None
    return Layout(source, True, heads, positions, sizes, None, as_before or back, permutation)


def _product(sizes: Sequence[Size]) -> int | None:
    total = 1
    for size in sizes:
        if not isinstance(size, int):
            return None
        total *= size
    return total


def _flat_source(site: Site, value: ir.Value, shape: tuple[Size, Size, Size]) -> ir.Value | None:
    """Return the value of this shape that `value` is a reshaped view of."""
    node = site.producer(value, "Reshape")
    source = None if node is None else node.inputs[0]
    return source if source is not None and site.shape(source) == shape else None
