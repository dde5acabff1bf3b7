"""Operators that pick or place elements by index."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.graph.shapes.rules import elements as el
from ortkit.graph.shapes.rules.call import Call, Rule, Shape, UnknownError, normal_axis
from ortkit.graph.shapes.rules.elementwise import same
from ortkit.graph.symbolic.dims import (
    Dim,
    Size,
    add,
    bounds,
    ceil_divide,
    is_at_least,
    maximum,
    minimum,
)

INT64 = ir.DataType.INT64
#: Ends from here on mean "to the end": exporters write the largest int32 or int64.
_FAR = 2**31 - 1


# ---- Slice -------------------------------------------------------------------------------


def _slice(call: Call) -> None:
    fact = call.fact(0)
    call.out(dtype=fact.dtype)
    shape = call.shape(0)
    starts, ends = _starts_and_ends(call)
    axes = _slice_axes(call, shape, starts)
    if axes is None:
        call.out(shape=tuple(call.fresh() for _ in shape))
        return
    if starts is None or ends is None:
        call.out(shape=tuple(call.fresh() if i in axes else s for i, s in enumerate(shape)))
        return
    steps = _steps(call, len(axes))
    if not len(starts) == len(ends) == len(axes):
        raise UnknownError
    result = list(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        length = _length(shape[axis], start, end, step)
        result[axis] = call.fresh() if length is None else length
    call.out(shape=tuple(result))
    _slice_elements(call, axes, starts, ends, steps)


def _starts_and_ends(call: Call) -> tuple[Shape | None, Shape | None]:
    given, until = call.integers("starts"), call.integers("ends")
    if given is not None or until is not None:
        return given, until
    if call.fact(1).elements is None or call.fact(2).elements is None:
        return None, None
    return call.sizes(1), call.sizes(2)


def _slice_axes(call: Call, shape: Shape, starts: Shape | None) -> list[int] | None:
    """Return the axes cut, None if unknown."""
    axes = call.integers("axes")
    if axes is None and call.has(3):
        elements = call.fact(3).elements
        if elements is None or not all(isinstance(axis, int) for axis in elements):
            return None
        axes = call.numbers(3)
    if axes is None:
        length = len(starts) if starts is not None else None
        if length is None:
            at = call.fact(1).shape
            length = at[0] if at is not None and len(at) == 1 and isinstance(at[0], int) else None
        if length is None:
            return None
        axes = tuple(range(length))
    return [normal_axis(axis, len(shape)) for axis in axes]


def _steps(call: Call, number: int) -> tuple[int | None, ...]:
    if not call.has(4):
        return (1,) * number
    elements = call.fact(4).elements
    if elements is None:
        return (None,) * number
    return tuple(step if isinstance(step, int) else None for step in elements)


def _length(size: Size, start: Size, end: Size, step: int | None) -> Size | None:
    if step is None or not _is_clear(end, step):
        return None
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        if step < 0 and start < -size:
            return None  # The standard starts at the first element, numpy before it.
        return len(range(*slice(start, _static_end(end, step), step).indices(size)))
    if step < 0:
        return _backward_length(size, start, end, step)
    return _forward_length(size, start, end, step)


def _is_clear(end: Size, step: int) -> bool:
    """Say whether all runtimes agree on what is cut.

    Backward, ONNX Runtime takes the largest integers for "through the first element" (seen with
    1.31.1), numpy for a place after the last one.
    """
    return step > 0 or (step < 0 and not (isinstance(end, int) and end >= _FAR))


def _static_end(end: int, step: int) -> int | None:
    # An end far below the front means "through the first element" going backward.
    return None if step < 0 and end <= -_FAR else end


def _backward_length(size: Size, start: Size, end: Size, step: int) -> Size | None:
    """Only the whole axis: from the last element (or beyond) through the first."""
    if not isinstance(start, int) or not isinstance(end, int) or end > -_FAR:
        return None
    if start == -1 or start >= _FAR:
        return ceil_divide(size, -step)
    return None


def _forward_length(size: Size, start: Size, end: Size, step: int) -> Size | None:
    stop = _stop(size, end)
    if stop is None:
        return None
    if isinstance(start, int) and start < 0:
        if stop == size:
            return ceil_divide(minimum(size, -start), step)
        begin = maximum(add(size, start), 0)
    elif is_at_least(start, 0):
        begin = start
    else:
        return None
    return ceil_divide(maximum(add(stop, -begin), 0), step)


def _stop(size: Size, end: Size) -> Size | None:
    """Return the end counted from the front, not beyond the last; it may lie before 0."""
    if isinstance(end, int):
        if end >= _FAR:
            return size
        return minimum(end, size) if end >= 0 else add(size, end)
    if is_at_least(end, 0):
        return minimum(end, size)
    _, high = bounds(end)
    return add(size, end) if high is not None and high < 0 else None


def _slice_elements(
    call: Call, axes: list[int], starts: Shape, ends: Shape, steps: tuple[int | None, ...]
) -> None:
    array = el.as_array(call.fact(0))
    if array is None:
        return
    cut = [slice(None)] * array.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if not isinstance(start, int) or not isinstance(end, int):
            return
        if step is None or not _is_clear(end, step):
            return
        cut[axis] = slice(start, _static_end(end, step), step)
    call.out(elements=el.from_array(array[tuple(cut)]))


# ---- Gather and Scatter --------------------------------------------------------------------


def _gather(call: Call) -> None:
    data, index = call.fact(0), call.fact(1)
    call.out(dtype=data.dtype)
    shape, positions = call.shape(0), call.shape(1)
    axis = normal_axis(call.integer("axis", 0), len(shape))
    call.out(shape=(*shape[:axis], *positions, *shape[axis + 1 :]))
    array, picked = el.as_array(data), el.as_array(index)
    if array is None or picked is None:
        return
    if all(isinstance(position, int) for position in index.elements or ()):
        # A scalar index would make numpy return the bare element.
        rows = picked.astype(np.int64).reshape(-1)
        call.out(elements=el.from_array(np.take(array, rows, axis)))


def _gather_elements(call: Call) -> None:
    call.out(dtype=call.dtype(0), shape=call.fact(1).shape)


def _gather_nd(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    shape, index = call.shape(0), call.shape(1)
    batch = call.integer("batch_dims", 0)
    depth = index[-1]
    if not isinstance(depth, int) or not 1 <= depth + batch <= len(shape):
        raise UnknownError
    call.out(shape=(*index[:-1], *shape[batch + depth :]))


def _one_hot(call: Call) -> None:
    call.out(dtype=call.dtype(2))
    index = call.shape(0)
    axis = normal_axis(call.integer("axis", -1), len(index) + 1)
    depth = call.fact(1).elements
    size = depth[0] if depth else None
    if isinstance(size, float):
        size = int(size)
    known: Size = size if isinstance(size, int | Dim) else call.fresh()
    call.out(shape=(*index[:axis], known, *index[axis:]))


# ---- found at run time ---------------------------------------------------------------------


def _non_zero(call: Call) -> None:
    call.out(dtype=INT64)
    rank = len(call.shape(0))
    if rank:
        call.out(shape=(rank, call.fresh()))


def _non_max_suppression(call: Call) -> None:
    call.out(dtype=INT64, shape=(call.fresh(), 3))


def _top_k(call: Call) -> None:
    call.out(0, dtype=call.dtype(0))
    call.out(1, dtype=INT64)
    shape = call.shape(0)
    axis = normal_axis(call.integer("axis", -1), len(shape))
    attribute = call.attribute("k")
    size: Size = call.fresh()
    if attribute is not None:
        size = attribute.as_int()
    elif (elements := call.fact(1).elements) is not None and isinstance(elements[0], int | Dim):
        size = elements[0]
    result = (*shape[:axis], size, *shape[axis + 1 :])
    call.out(0, shape=result)
    call.out(1, shape=result)


def _compress(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    attribute = call.attribute("axis")
    if attribute is None:
        call.out(shape=(call.fresh(),))
        return
    shape = call.shape(0)
    axis = normal_axis(attribute.as_int(), len(shape))
    call.out(shape=(*shape[:axis], call.fresh(), *shape[axis + 1 :]))


RULES: dict[str, Rule] = {
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Scatter": same,
    "ScatterElements": same,
    "ScatterND": same,
    "TensorScatter": same,
    "OneHot": _one_hot,
    "NonZero": _non_zero,
    "NonMaxSuppression": _non_max_suppression,
    "TopK": _top_k,
    "Compress": _compress,
}
