"""Sizes of inputs, set to a number wherever a model declares them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.graph.shapes.declared import SIZE_LIMIT
from ortkit.graph.symbolic.dims import names, substitute
from ortkit.graph.symbolic.text import parse_size


def label_of(value: ir.Value, axis: int) -> str:
    """Return what a size of an input is called that has no name, such as `pixels[2]`."""
    return f"{value.name}[{axis}]"


def fix_sizes(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Set sizes of a model to numbers, in place; values and nodes keep their names.

    An expression such as `past + sequence` becomes a number where all its names have one.

    Args:
        model: The model, changed in place.
        sizes: By the size's name; one without a name by `label_of` its input.

    Raises:
        UserError: No input has a size of that name, or a number is negative or above `SIZE_LIMIT`.
    """
    _name_axes(model, sizes)
    known = {
        name
        for value in model.graph.inputs
        for dim in value.shape or ()
        if not isinstance(dim, int) and dim.value
        for name in names(parse_size(dim.value))
    }
    for name, size in sizes.items():
        where = f"--fix-shape {name}={size}"
        if size < 0:
            raise UserError(f"size {size} is negative", where=where)
        if size > SIZE_LIMIT:
            raise UserError(f"size {size} is more than a tensor has", where=where)
        if name not in known:
            listed = f"choose one of {', '.join(sorted(known))}" if known else "leave it out"
            raise UserError(f"no input has a size named {name!r}", where=where, fix=listed)
    for value in _values(model):
        if value.shape is not None and not value.shape.is_static():
            value.shape = ir.Shape([_fixed(dim, sizes) for dim in value.shape])


def _name_axes(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Give sizes of inputs that have no name those of `sizes` that mean them."""
    for value in model.graph.inputs:
        if value.shape is None:
            continue
        dims = list(value.shape.dims)
        for axis, dim in enumerate(dims):
            is_open = isinstance(dim, ir.SymbolicDim) and not dim.value
            if is_open and (name := label_of(value, axis)) in sizes:
                dims[axis] = ir.SymbolicDim(name)
        value.shape = ir.Shape(dims)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from (*model.graph.inputs, *model.graph.outputs)
    for node in model.graph.all_nodes():
        yield from node.outputs


def _fixed(dim: int | ir.SymbolicDim, sizes: Mapping[str, int]) -> int | str | None:
    if isinstance(dim, int) or not dim.value:
        return dim if isinstance(dim, int) else None
    size = parse_size(dim.value)
    if not sizes.keys() & set(names(size)):
        return dim.value
    found = substitute(size, dict(sizes))
    return found if isinstance(found, int) else str(found)
