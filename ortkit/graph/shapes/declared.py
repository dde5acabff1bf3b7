"""Judging facts: what to believe of a declaration, what to keep, what to write down."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.graph.shapes.rules.call import Element, Elements, Fact, Ratio, Shape
from ortkit.graph.symbolic.dims import Dim, Size, has_unknown, names, weight
from ortkit.graph.symbolic.text import parse_size

#: Expressions above this many atoms become a new unknown, so that chains stay linear.
WEIGHT_LIMIT = 48
#: No size of a tensor is above this.
SIZE_LIMIT = 2**62


def declared_size(dim: int | ir.SymbolicDim) -> Size | None:
    """Return what a `dim` field says, None for nothing or a negative number.

    A name that is written as a number says nothing: ONNX Runtime takes any size for it.
    """
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    size = parse_size(dim.value) if dim.value else None
    return None if isinstance(size, int) else size


def names_of_inputs(model: ir.Model) -> frozenset[str]:
    """Return the names that the inputs' sizes are declared with."""
    found: set[str] = set()
    for value in model.graph.inputs:
        for dim in value.shape or ():
            size = declared_size(dim)
            found |= frozenset() if size is None else names(size)
    return frozenset(found)


def is_tensor(value: ir.Value) -> bool:
    """Say whether nothing speaks against the value being a tensor."""
    return value.type is None or isinstance(value.type, ir.TensorType)


def is_unwieldy(size: Size) -> bool:
    """Say whether an expression has grown too large to go on with."""
    if isinstance(size, int):
        return False
    if weight(size) > WEIGHT_LIMIT:
        return True
    return any(abs(factor) >= SIZE_LIMIT for _, factor in size.terms)


def is_large(element: Element) -> bool:
    """Say whether the size in an element has grown too large to go on with."""
    if isinstance(element, Ratio):
        return is_unwieldy(element.over)
    return isinstance(element, Dim) and is_unwieldy(element)


def all_sizes(elements: Elements) -> Shape | None:
    """Return the elements if all are integers or sizes."""
    sizes = tuple(element for element in elements if isinstance(element, int | Dim))
    return sizes if len(sizes) == len(elements) else None


def more_precise(first: Fact, second: Fact) -> Fact:
    """Return the best of what is known of one value in two ways."""
    elements = first.elements
    if _certain(second.elements) > _certain(first.elements):
        elements = second.elements
    dtype = second.dtype if first.dtype is None else first.dtype
    return Fact(dtype, _finer(first.shape, second.shape), elements)


def _certain(elements: Elements | None) -> int:
    """Count the elements that are the same in every run; -1 where none is known at all."""
    if elements is None:
        return -1
    return sum(not isinstance(element, Dim) for element in elements)


def _finer(first: Shape | None, second: Shape | None) -> Shape | None:
    if first is None or second is None:
        return second if first is None else first
    if len(first) != len(second):
        return first
    return tuple(
        other if _vagueness(other) < _vagueness(size) else size
        for size, other in zip(first, second, strict=True)
    )


def _vagueness(size: Size) -> int:
    if isinstance(size, int):
        return 0
    return 2 if has_unknown(size) else 1
