"""Operators that move elements without changing them: reshape, transpose, join, cut, repeat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortkit.graph.shapes.rules import elements as el
from ortkit.graph.shapes.rules.call import Call, Rule, Shape, UnknownError, is_small, normal_axis
from ortkit.graph.shapes.rules.elementwise import broadcast_shapes, same
from ortkit.graph.symbolic.dims import (
    Dim,
    Size,
    add,
    ceil_divide,
    divide_exactly,
    floor_divide,
    has_unknown,
    is_at_least,
    multiply,
    product,
)


def _view(call: Call, shape: Shape) -> None:
    """Output 0 is input 0 with another shape, the elements in the same order."""
    fact = call.fact(0)
    call.out(dtype=fact.dtype, shape=shape, elements=fact.elements)


# ---- reshape -----------------------------------------------------------------------------


def _reshape(call: Call) -> None:
    fact = call.fact(0)
    call.out(dtype=fact.dtype)
    given = call.integers("shape")
    target: Shape
    if given is not None:
        target = given
    else:
        fact_of_target = call.fact(1)
        if fact_of_target.elements is None:
            _rank_from_length(call, fact_of_target.shape)
            return
        target = call.sizes(1)
    shape = reshaped(call, fact.shape, target, keeps_zero=call.integer("allowzero", 0) != 0)
    _view(call, shape)


def _rank_from_length(call: Call, shape: Shape | None) -> None:
    """Know at least the rank where a target of unknown contents has a known length."""
    if shape is not None and len(shape) == 1 and isinstance(shape[0], int) and shape[0] < 64:
        call.out(shape=tuple(call.fresh() for _ in range(shape[0])))


def reshaped(call: Call, source: Shape | None, target: Shape, *, keeps_zero: bool) -> Shape:
    """Return the shape after a Reshape to `target`, whose entries may be 0 and -1.

    A symbolic entry may be 0 in a run, where ONNX copies the input's size. It is taken for
    itself only if the number of elements is a multiple of it. A 0 then means an empty input,
    and what is known of the shape can be wrong in its zeros only.
    """
    total = None if source is None else product(source)
    result: list[Size | None] = []
    for index, size in enumerate(target):
        if size == 0 and not keeps_zero:
            copied = source[index] if source is not None and index < len(source) else None
            result.append(call.fresh() if copied is None else copied)
        elif size == -1:
            result.append(None)
        else:
            is_special = _may_be_special(size, total, keeps_zero=keeps_zero)
            result.append(call.fresh() if is_special else size)
    if source is not None:
        _solve(source, target, result)
    return tuple(call.fresh() if size is None else size for size in result)


def _may_be_special(size: Size, total: Size | None, *, keeps_zero: bool) -> bool:
    """Say whether an entry may mean "copy" or "the rest" in a run with a non-empty input."""
    if isinstance(size, int) or is_at_least(size, 0 if keeps_zero else 1):
        return False
    if any(atom.kind == "value" for atom in size.atoms()):
        return True
    return total is None or divide_exactly(total, size) is None


def _solve(source: Shape, target: Shape, result: list[Size | None]) -> None:
    """Find the one entry that is the rest; the others multiplied cannot be 0 then."""
    open_at = [index for index, size in enumerate(result) if size is None]
    if len(open_at) > 1:
        raise UnknownError
    if open_at:
        result[open_at[0]] = _rest(source, [size for size in result if size is not None])
        return
    unsure = [
        index for index, size in enumerate(target) if size != result[index] and size not in (0, -1)
    ]
    others = [size for index, size in enumerate(result) if index not in unsure]
    rest = product(size for size in others if size is not None)
    if len(unsure) == 1 and isinstance(rest, int) and rest > 0:
        result[unsure[0]] = _rest(source, [rest])


def _rest(source: Shape, others: Sequence[Size]) -> Size:
    # Sizes that stand on both sides cancel one by one first: the product of what is left is
    # smaller, and unknown sizes cancel too.
    left = list(source)
    divisors: list[Size] = []
    for size in others:
        if isinstance(size, Dim) and size in left:
            left.remove(size)
        else:
            divisors.append(size)
    total, divisor = product(left), product(divisors)
    if divisor == 0:
        raise UnknownError
    exact = divide_exactly(total, divisor)
    if exact is not None:
        return exact
    if isinstance(total, int) and isinstance(divisor, int):
        raise UnknownError
    return floor_divide(total, divisor)


def _flatten(call: Call) -> None:
    fact = call.fact(0)
    call.out(dtype=fact.dtype, shape=(call.fresh(), call.fresh()))
    shape = call.shape(0)
    axis = call.integer("axis", 1)
    if axis != len(shape):
        axis = normal_axis(axis, len(shape))
    _view(call, (product(shape[:axis]), product(shape[axis:])))


def _squeeze(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    shape = call.shape(0)
    axes = call.axes(1)
    if axes is None:
        if any(isinstance(size, Dim) for size in shape):
            raise UnknownError
        _view(call, tuple(size for size in shape if size != 1))
        return
    gone = {normal_axis(axis, len(shape)) for axis in axes}
    for axis in gone:
        call.equate(shape[axis], 1)
    _view(call, tuple(size for axis, size in enumerate(shape) if axis not in gone))


def _unsqueeze(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    shape = call.shape(0)
    axes = call.axes(1)
    if axes is None:
        raise UnknownError
    rank = len(shape) + len(axes)
    new = {normal_axis(axis, rank) for axis in axes}
    if len(new) != len(axes):
        raise UnknownError
    rest = iter(shape)
    _view(call, tuple(1 if axis in new else next(rest) for axis in range(rank)))


def _transpose(call: Call) -> None:
    fact = call.fact(0)
    call.out(dtype=fact.dtype)
    shape = call.shape(0)
    order = call.integers("perm")
    if order is None:
        order = tuple(reversed(range(len(shape))))
    if sorted(order) != list(range(len(shape))):
        raise UnknownError
    call.out(shape=tuple(shape[axis] for axis in order))
    array = el.as_array(fact)
    if array is not None:
        call.out(elements=el.from_array(array.transpose(order)))


# ---- join and cut ------------------------------------------------------------------------


def _concat(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    shapes = [fact.shape for i in range(call.inputs) if (fact := call.fact(i)).shape is not None]
    known = [shape for shape in shapes if shape is not None]
    if not known:
        raise UnknownError
    rank = len(known[0])
    axis = normal_axis(call.integer("axis", 1), rank)
    if any(len(shape) != rank for shape in known):
        raise UnknownError
    complete = len(known) == call.inputs
    result: list[Size] = [
        call.fresh() if i == axis else _shared(call, [shape[i] for shape in known])
        for i in range(rank)
    ]
    if complete:
        total: Size = 0
        for shape in known:
            total = add(total, shape[axis])
        result[axis] = total
    call.out(shape=tuple(result))
    arrays = [el.as_array(call.fact(index)) for index in range(call.inputs)]
    if complete and all(array is not None for array in arrays):
        joined = np.concatenate([array for array in arrays if array is not None], axis)
        call.out(elements=el.from_array(joined))


def _shared(call: Call, sizes: Sequence[Size]) -> Size:
    """Return the one size that all must have: the most telling of them."""
    best = min(sizes, key=lambda size: (isinstance(size, Dim), has_unknown(size)))
    for size in sizes:
        call.equate(size, best)
    return best


def _split(call: Call) -> None:
    fact = call.fact(0)
    for index in range(call.outputs):
        call.out(index, dtype=fact.dtype)
    shape = call.shape(0)
    axis = normal_axis(call.integer("axis", 0), len(shape))
    parts = _parts(call, shape[axis])
    for index, size in enumerate(parts):
        call.out(index, shape=(*shape[:axis], size, *shape[axis + 1 :]))
    array = el.as_array(fact)
    if array is None or any(isinstance(size, Dim) for size in parts):
        return
    cuts = np.cumsum([size for size in parts if isinstance(size, int)])[:-1]
    for index, piece in enumerate(np.split(array, cuts, axis)):
        call.out(index, elements=el.from_array(piece))


def _parts(call: Call, size: Size) -> Shape:
    given: Shape | None = call.integers("split")
    if given is None and call.has(1):
        fact = call.fact(1)
        if fact.elements is None:
            return tuple(call.fresh() for _ in range(call.outputs))
        given = call.sizes(1)
    if given is not None:
        if len(given) != call.outputs:
            raise UnknownError
        return given
    pieces = call.outputs
    exact = divide_exactly(size, pieces)
    if exact is not None:
        return (exact,) * pieces
    # Equal parts, the last one smaller; rounding up may leave less than nothing for it.
    part = ceil_divide(size, pieces)
    last = add(size, -multiply(part, pieces - 1))
    if call.version < 18 or (isinstance(last, int) and last < 0):
        raise UnknownError
    return (*(part,) * (pieces - 1), last)


# ---- repeat and pad ----------------------------------------------------------------------


def _expand(call: Call) -> None:
    fact = call.fact(0)
    call.out(dtype=fact.dtype)
    shape = call.shape(0)
    target = call.fact(1)
    if target.elements is None:
        length = target.shape[0] if target.shape is not None and len(target.shape) == 1 else None
        if isinstance(length, int) and length < 64:
            call.out(shape=tuple(call.fresh() for _ in range(max(length, len(shape)))))
        return
    result = broadcast_shapes(shape, call.sizes(1))
    call.out(shape=result)
    array = el.as_array(fact)
    if array is not None and is_small(result):
        sizes = [size for size in result if isinstance(size, int)]
        call.out(elements=el.from_array(np.broadcast_to(array, sizes)))


def _tile(call: Call) -> None:
    fact = call.fact(0)
    call.out(dtype=fact.dtype)
    shape = call.shape(0)
    if call.version < 6:
        _tile_one_axis(call, shape)
        return
    call.out(shape=tuple(call.fresh() for _ in shape))
    repeats = call.sizes(1)
    if len(repeats) != len(shape):
        raise UnknownError
    result = tuple(multiply(size, times) for size, times in zip(shape, repeats, strict=True))
    call.out(shape=result)
    array = el.as_array(fact)
    if array is not None and is_small(result):
        times = [int(n) for n in repeats if isinstance(n, int)]
        if len(times) == len(repeats):
            call.out(elements=el.from_array(np.tile(array, times)))


def _tile_one_axis(call: Call, shape: Shape) -> None:
    times, axis = call.sizes(1), call.numbers(2)
    at = normal_axis(axis[0], len(shape))
    call.out(shape=(*shape[:at], multiply(shape[at], times[0]), *shape[at + 1 :]))


def _pad(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    shape = call.shape(0)
    call.out(shape=tuple(call.fresh() for _ in shape))
    given = call.integers("pads") or call.integers("paddings")
    pads: Shape = call.sizes(1) if given is None else given
    axes = call.numbers(3) if call.has(3) else tuple(range(len(shape)))
    if len(pads) != 2 * len(axes):
        raise UnknownError
    result = list(shape)
    for index, axis in enumerate(axes):
        at = normal_axis(axis, len(shape))
        result[at] = add(result[at], add(pads[index], pads[index + len(axes)]))
    call.out(shape=tuple(result))


# ---- blocks ------------------------------------------------------------------------------


def _depth_to_space(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    n, c, h, w = call.shape(0)
    block = call.integer("blocksize", 0)
    depth = _exact(c, block * block)
    call.out(shape=(n, depth, multiply(h, block), multiply(w, block)))


def _space_to_depth(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    n, c, h, w = call.shape(0)
    block = call.integer("blocksize", 0)
    depth = multiply(c, block * block)
    call.out(shape=(n, depth, _exact(h, block), _exact(w, block)))


def _exact(size: Size, divisor: int) -> Size:
    """Return the quotient of a size that must be a multiple, or the run fails."""
    exact = divide_exactly(size, divisor)
    if exact is not None:
        return exact
    if isinstance(size, int):
        raise UnknownError
    return floor_divide(size, divisor)


def _center_crop_pad(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    shape = call.shape(0)
    axes = call.integers("axes") or tuple(range(len(shape)))
    target = call.sizes(1)
    if len(target) != len(axes):
        raise UnknownError
    result = list(shape)
    for axis, size in zip(axes, target, strict=True):
        result[normal_axis(axis, len(shape))] = size
    call.out(shape=tuple(result))


RULES: dict[str, Rule] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "CenterCropPad": _center_crop_pad,
    "Trilu": same,
    "ReverseSequence": same,
}
