"""Operators that move elements and compute nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fuzz.grower import Grower
from fuzz.values import ONE, Shape, Size, Value

_END = 2**31 - 1


def apply(g: Grower, x: Value) -> None:
    """Apply a random view; nothing if it does not fit the shape."""
    g.rng.choice(VIEWS)(g, x)


def transpose(g: Grower, x: Value) -> None:
    """Permute axes: as heads are, the last two, or any way."""
    rank = len(x.shape)
    if rank < 2:
        return
    order = list(range(rank))
    if rank == 4 and g.chance(0.4):
        order = [0, 2, 1, 3]
    elif g.chance(0.4):
        order[-2:] = order[-1], order[-2]
    else:
        g.rng.shuffle(order)
    given = {} if order == order[::-1] and g.chance(0.3) else {"perm": order}
    order = order if given else list(range(rank))[::-1]
    _emit(g, "Transpose", x, tuple(x.shape[axis] for axis in order), **given)


def reshape(g: Grower, x: Value) -> None:
    """Merge two axes that lie side by side, split one, or flatten all."""
    shape = list(x.shape)
    draw = g.rng.random()
    if draw < 0.5 and len(shape) > 1:
        axis = g.rng.randrange(len(shape) - 1)
        shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    elif draw < 0.9 and shape:
        axis = g.rng.randrange(len(shape))
        size = shape[axis]
        factor = g.rng.choice(
            [f for f in range(1, size.factor + 1) if size.factor % f == 0] or [1]
        )
        parts = [Size(size.factor // factor if factor else 0, size.names), Size(factor)]
        g.rng.shuffle(parts)
        if len(size.names) == 2:
            parts = [Size(size.factor, size.names[:1]), Size(1, size.names[1:])]
        shape[axis : axis + 1] = parts
    else:
        shape = [math.prod(shape, start=ONE)]
    target = _target(x.shape, shape)
    if target is not None and len(shape) <= 8:
        _emit(g, "Reshape", x, tuple(shape), more=[g.integers(target)])


def _target(before: Sequence[Size], after: Sequence[Size]) -> list[int] | None:
    """Return what a Reshape is given: 0 for a size that stays in place, one -1."""
    target = []
    for axis, size in enumerate(after):
        if size.is_static:
            target.append(size.factor)
        else:
            target.append(0 if axis < len(before) and before[axis] == size else -1)
    # A zero copies: where a size is 0 it must be copied too.
    zeros = [axis for axis, size in enumerate(after) if size == Size(0)]
    if any(axis >= len(before) or before[axis] != Size(0) for axis in zeros):
        return None
    return target if target.count(-1) <= 1 else None


def flatten(g: Grower, x: Value) -> None:
    """Make two axes of all."""
    axis = g.rng.randint(0, len(x.shape))
    rows, columns = (math.prod(part, start=ONE) for part in (x.shape[:axis], x.shape[axis:]))
    _emit(g, "Flatten", x, (rows, columns), axis=axis)


def squeeze(g: Grower, x: Value) -> None:
    """Drop axes of size 1."""
    axes = [axis for axis, size in enumerate(x.shape) if size.is_one and g.chance(0.7)]
    if axes:
        shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
        _emit(g, "Squeeze", x, shape, more=[g.integers(axes)])


def unsqueeze(g: Grower, x: Value) -> None:
    """Add an axis of size 1."""
    if len(x.shape) >= 8:
        return
    axis = g.rng.randint(0, len(x.shape))
    shape = (*x.shape[:axis], ONE, *x.shape[axis:])
    given = axis - len(shape) if g.chance(0.3) else axis
    _emit(g, "Unsqueeze", x, shape, more=[g.integers([given])])


def expand(g: Grower, x: Value) -> None:
    """Repeat along axes of size 1, or along a new one."""
    shape, target = list(x.shape), []
    for axis, size in enumerate(shape):
        target.append(g.rng.choice((1, 2, 5)) if size.is_one else 1)
        if size.is_one:
            shape[axis] = Size(target[-1])
    if len(shape) < 8 and g.chance(0.3):
        shape.insert(0, Size(3))
        target.insert(0, 3)
    if tuple(shape) != x.shape:
        _emit(g, "Expand", x, tuple(shape), more=[g.integers(target)])


def slice_(g: Grower, x: Value) -> None:
    """Take a part of an axis of known size, mostly with step 1."""
    axis = _static_axis(g, x)
    if axis is None:
        return
    size = x.shape[axis].factor
    start, step = g.rng.randrange(size), g.rng.choice((1, 1, 1, 2, 3))
    end = g.rng.randint(start + 1, size)
    if g.chance(0.06):
        start, end, step = size - 1, -_END, -1
    count = len(range(*slice(start, None if end < 0 else end, step).indices(size)))
    if end == size and g.chance(0.5):
        end = _END
    if g.chance(0.2) and step > 0:
        start -= size
    lists = [[start], [end], [axis if g.chance(0.7) else axis - len(x.shape)], [step]]
    if step == 1 and g.chance(0.5):
        lists.pop()
    _emit(g, "Slice", x, _with(x.shape, axis, count), more=[g.integers(list_) for list_ in lists])


def concat(g: Grower, x: Value) -> None:
    """Put values of one shape, or a new input, side by side."""
    axis = _static_axis(g, x)
    if axis is None:
        return
    alike = [v for v in g.values if v.dtype == x.dtype and v.shape == x.shape]
    other = g.rng.choice(alike)
    if g.chance(0.4):
        other = g.add_input(x.dtype, _with(x.shape, axis, g.rng.choice((1, 3, 8))))
    parts = [x, other]
    g.rng.shuffle(parts)
    total = sum(part.shape[axis].factor for part in parts)
    g.emit(
        "Concat", [part.name for part in parts], x.dtype, _with(x.shape, axis, total),
        max(part.bound for part in parts), axis=axis - len(x.shape) if g.chance(0.5) else axis,
    )  # fmt: skip


def split(g: Grower, x: Value) -> None:
    """Cut an axis of known size into parts, and mostly bring them together again."""
    axis = _static_axis(g, x)
    if axis is None or x.shape[axis].factor < 2:
        return
    size = x.shape[axis].factor
    half = size // 2 if size % 2 == 0 and g.chance(0.7) else g.rng.randint(1, size - 1)
    sizes = [half, size - half]
    shapes = [_with(x.shape, axis, item) for item in sizes]
    g.emit_parts("Split", [x.name, g.integers(sizes)], x, shapes, axis=axis)
    if half * 2 != size or x.dtype == "bool" or g.chance(0.2):
        return
    first, second = g.values[-2:]
    if g.chance(0.5):
        g.emit("Mul", [first.name, second.name], x.dtype, first.shape, x.bound**2)
    elif x.is_float:  # the half rotation of rotary embeddings
        turned = g.emit("Neg", [second.name], x.dtype, second.shape, x.bound)
        names = [turned.name, first.name]
        g.emit("Concat", names, x.dtype, x.shape, x.bound, axis=axis)


def gather(g: Grower, x: Value) -> None:
    """Take one index of an axis of known size, which goes."""
    axis = _static_axis(g, x)
    if axis is None:
        return
    size = x.shape[axis].factor
    index = g.constant(np.int64(g.rng.randrange(-size, size)), "int64")
    _emit(g, "Gather", x, (*x.shape[:axis], *x.shape[axis + 1 :]), more=[index], axis=axis)


def pad(g: Grower, x: Value) -> None:
    """Add a border of a constant along axes of known size."""
    axis = _static_axis(g, x)
    if axis is None or x.dtype in ("bool", "bfloat16"):
        return
    before, after = g.rng.choice(((1, 1), (0, 2), (1, 0), (3, 1)))
    pads = [0] * (2 * len(x.shape))
    pads[axis], pads[axis + len(x.shape)] = before, after
    more = [g.integers(pads)]
    if g.chance(0.5):
        more.append(g.constant(np.float64(abs(round(g.number()))), x.dtype))
    shape = _with(x.shape, axis, x.shape[axis].factor + before + after)
    _emit(g, "Pad", x, shape, more=more)


def _static_axis(g: Grower, x: Value) -> int | None:
    axes = [axis for axis, size in enumerate(x.shape) if size.is_static and size.factor > 0]
    long = [axis for axis in axes if x.shape[axis].factor > 1]
    return g.rng.choice(long or axes) if axes else None


def _with(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], Size(size), *shape[axis + 1 :])


def _emit(
    g: Grower, op: str, x: Value, shape: Shape, more: Sequence[str] = (), **given: object
) -> None:
    keeps = op != "Pad"
    g.emit(
        op, [x.name, *more], x.dtype, shape, x.bound, is_positive=keeps and x.is_positive, **given
    )


VIEWS: tuple[Callable[[Grower, Value], None], ...] = (
    transpose, transpose, reshape, reshape, flatten, squeeze, unsqueeze, expand, slice_, concat,
    split, split, gather, pad,
)  # fmt: skip
