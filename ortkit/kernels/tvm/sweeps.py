"""Loops over axes: in vectors where there are enough points, cut where parts of a Concat meet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ortkit.kernels.region.axes import Axis
from ortkit.kernels.tvm.emit import Expr
from ortkit.kernels.tvm.streams import ask_ahead
from ortkit.kernels.tvm.values import Values

Body: TypeAlias = Callable[[], None]


def every(v: Values, axis: Axis, body: Body) -> None:
    """Run `body` on every point of an axis, in vectors.

    The last vector ends where the axis ends, and so repeats some points of the one before; that is
    several times faster than one by one, and no output may overlap an input then.
    """
    if axis.extent.static is not None:
        for low, high in segments(v, axis):
            _known(v, axis, low, high, body)
        return
    extent = v.extent(axis.extent)
    with v.e.block() as wide:
        vectors(v, axis, extent, body)
    with v.e.block() as narrow:
        one_by_one(v, axis, extent, body)
    v.e.branch(extent >= v.e.i64(v.schedule.choices.vector), wide, narrow)


def segments(v: Values, axis: Axis) -> list[tuple[int, int]]:
    """Return the parts of an axis of known size that are not empty: first, one after the last."""
    length = axis.extent.static
    assert length is not None
    ends = [*v.schedule.trace.breaks.get(axis, ()), length]
    return [(low, high) for low, high in zip([0, *ends], ends, strict=False) if high > low]


def width_of(v: Values, length: int) -> int:
    """Return the lanes of a vector for rows of that many points: a power of two."""
    return min(v.schedule.choices.vector, 1 << max(0, length.bit_length() - 1))


def _known(v: Values, axis: Axis, low: int, high: int, body: Body) -> None:
    """Run over low .. high - 1."""
    e, width = v.e, width_of(v, high - low)
    whole, rest = divmod(high - low, width)
    if width == 1:
        with e.loop(e.i64(whole)) as index:
            v.bind(axis, index + e.i64(low), low, high)
            body()
        return
    side_by_side = min(v.schedule.choices.unroll, whole)
    for count, done in ((side_by_side, 0), (1, whole - whole % side_by_side)):
        steps, start = (whole - done) // count, e.i64(low + done * width)
        with e.loop(e.i64(steps)) as index:
            step(v, axis, start + index * e.i64(count * width), count, width, (low, high), body)
        if done + steps * count == whole:
            break
    if rest:
        with e.vector(width) as lane:
            v.bind(axis, e.i64(high - width) + lane, low, high)
            body()


def vectors(v: Values, axis: Axis, extent: Expr, body: Body) -> None:
    """Run over an axis of unknown size, one vector or more."""
    e, width, count = v.e, v.schedule.choices.vector, v.schedule.choices.unroll
    begin = e.i64(0)
    if count > 1:
        steps = e.share(e.divide_down(extent, width * count))
        with e.loop(steps) as index:
            step(v, axis, index * e.i64(width * count), count, width, (0, None), body)
        begin = e.share(steps * e.i64(width * count))
    with e.loop(e.divide_up(extent - begin, width)) as index:
        start = e.share(e.minimum(begin + index * e.i64(width), extent - e.i64(width)))
        step(v, axis, start, 1, width, (0, None), body)


def step(
    v: Values,
    axis: Axis,
    start: Expr,
    count: int,
    width: int,
    bounds: tuple[int, int | None],
    body: Body,
) -> None:
    """Run over `count` vectors from `start` on, side by side; all lie within `bounds`."""
    e = v.e
    with contextlib.nullcontext(None) if count == 1 else e.unrolled(count) as part:
        first = start if part is None else start + part * e.i64(width)
        if not v.schedule.row:
            ask_ahead(v, axis, first, width)
        with e.vector(width) as lane:
            v.bind(axis, first + lane, *bounds)
            body()


def one_by_one(v: Values, axis: Axis, extent: Expr, body: Body) -> None:
    """Run over an axis of unknown size without vectors."""
    with v.e.loop(extent) as index:
        v.bind(axis, index)
        body()


def nest(v: Values, axes: Sequence[Axis], body: Body) -> None:
    """Run `body` on every point of serial loops, the first outermost."""
    if not axes:
        body()
        return
    axis, *rest = axes
    if axis.extent.static is None:
        with v.e.loop(v.extent(axis.extent)) as index:
            v.bind(axis, index)
            nest(v, rest, body)
        return
    for low, high in segments(v, axis):
        with v.e.loop(v.e.i64(high - low)) as index:
            v.bind(axis, index + v.e.i64(low), low, high)
            nest(v, rest, body)
