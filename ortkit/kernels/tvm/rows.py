"""Rows with reductions: one row in vectors along it, or a vector of rows side by side."""

from __future__ import annotations

from collections.abc import Callable

from ortkit.kernels.region.axes import Axis
from ortkit.kernels.region.dtypes import compute_dtype
from ortkit.kernels.region.program import Reduce
from ortkit.kernels.sizes import Extent, product
from ortkit.kernels.tvm.emit import Buffer, Expr
from ortkit.kernels.tvm.reductions import REDUCTIONS, Reduction, halve
from ortkit.kernels.tvm.schedule import KEPT_ROW
from ortkit.kernels.tvm.streams import ask_ahead
from ortkit.kernels.tvm.sweeps import every, nest, one_by_one, segments, vectors, width_of
from ortkit.kernels.tvm.values import Values


def rows_in_vectors(v: Values) -> None:
    """Compute the current row: a pass for each reduction, then one for the outputs.

    A row of unknown size has a variant that keeps what passes share, one for rows too long for
    that, and one for rows shorter than a vector.
    """
    e, vector = v.e, v.schedule.row[-1]
    count = product(axis.extent for axis in v.schedule.row)
    if vector.extent.static is not None:
        _kept_or_not(v, count)
        return
    with e.block() as wide:
        _kept_or_not(v, count)
    with e.block() as tiny, v.new_row():
        _row(v, is_tiny=True)
    e.branch(v.extent(vector.extent) >= e.i64(v.schedule.choices.vector), wide, tiny)


def _kept_or_not(v: Values, count: Extent) -> None:
    """Compute a row of `count` points, keeping what passes share if there is room for it."""
    e = v.e
    if count.static is not None or not v.schedule.kept:
        with v.new_row(count.static or 0):
            _row(v)
        return
    with e.block() as kept, v.new_row(KEPT_ROW):
        _row(v)
    with e.block() as long, v.new_row():
        _row(v)
    e.branch(v.extent(count) <= e.i64(KEPT_ROW), kept, long)


def _row(v: Values, *, is_tiny: bool = False) -> None:
    for number in v.schedule.reductions:
        v.row.results[number] = _reduce_row(v, number, is_tiny=is_tiny)
        v.row.running += 1
    single, whole = _outputs(v)
    v.write(single)
    if whole:
        *outer, vector = v.schedule.row
        nest(v, outer, lambda: _points(v, vector, whole, is_tiny=is_tiny))


def _outputs(v: Values) -> tuple[list[int], list[int]]:
    """Return the outputs that are one number for each row, and those over its points."""
    row, outputs = set(v.schedule.row), v.schedule.program.outputs
    whole = [i for i, output in enumerate(outputs) if row & set(v.schedule.axes.of(output))]
    return [i for i in range(len(outputs)) if i not in whole], whole


def _points(v: Values, vector: Axis, outputs: list[int], *, is_tiny: bool) -> None:
    def body() -> None:
        v.write(outputs)

    if is_tiny:
        one_by_one(v, vector, v.extent(vector.extent), body)
    elif vector.extent.static is None:
        vectors(v, vector, v.extent(vector.extent), body)
    else:
        every(v, vector, body)


# ---- one row


def _reduce_row(v: Values, number: int, *, is_tiny: bool) -> Expr:
    """Return the reduction of the current row: accumulators side by side, then in halves."""
    e, (*outer, vector) = v.e, v.schedule.row
    x, kind, dtype = _reduction(v, number)
    spans: list[tuple[int, int | Expr]] = [(0, v.extent(vector.extent))]
    # Accumulators side by side hide the latency of an addition.
    width, most = v.schedule.choices.vector, v.schedule.choices.accumulators
    count = most
    if vector.extent.static is not None:
        known = segments(v, vector)
        shortest = min((high - low for low, high in known), default=1)
        width = width_of(v, shortest)
        count = most if shortest >= width * most else 1
        spans = [*known]
    if is_tiny:
        width = count = 1
    identity = kind.identity(e, dtype)
    total = _filled(v, identity, width, count, dtype)

    def take(lane: Expr, keep: Expr | None) -> None:
        value = v.value(x)
        value = value if keep is None else e.select(keep, value, identity)
        e.store(total, kind.step(e, total[lane], value), lane)

    def points() -> None:
        for low, high in spans:
            _span(v, vector, low, high, width, count, take)

    nest(v, outer, points)
    return e.share(halve(e, total, width * count, lambda a, b: kind.step(e, a, b)))


def _reduction(v: Values, number: int) -> tuple[int, Reduction, str]:
    value = v.schedule.program.values[number]
    assert isinstance(value.node, Reduce)
    return value.node.x, REDUCTIONS[value.node.kind], compute_dtype(value.dtype)


def _filled(v: Values, value: Expr, width: int, count: int, dtype: str) -> Buffer:
    e = v.e
    buffer = e.local(width * count, dtype)
    with e.unrolled(count) as part:
        if width == 1:
            e.store(buffer, value, part)
        else:
            with e.vector(width) as lane:
                e.store(buffer, value, part * e.i64(width) + lane)
    return buffer


def _span(
    v: Values,
    axis: Axis,
    low: int,
    high: int | Expr,
    width: int,
    count: int,
    take: Callable[[Expr, Expr | None], None],
) -> None:
    """Hand every point of low .. high - 1 to `take`, with the accumulator it belongs to.

    First `count` vectors at a time, then one, then one that ends where the span ends, whose first
    lanes were taken already and do not count.
    """
    e = v.e
    edge = (low, high if isinstance(high, int) else None)
    top = e.i64(high) if isinstance(high, int) else high
    if width == 1:
        with e.loop(top - e.i64(low)) as index:
            v.bind(axis, index + e.i64(low), *edge)
            take(e.i64(0), None)
        return
    start: int | Expr = low
    for size in dict.fromkeys((width * count, width)):
        steps = _steps(v, start, high, size)
        if isinstance(steps, int) and not steps:
            continue
        first = e.i64(start) if isinstance(start, int) else start
        times = e.i64(steps) if isinstance(steps, int) else steps
        with e.loop(times) as index, e.unrolled(size // width) as part:
            begin = index * e.i64(size) + first + part * e.i64(width)
            if not v.row.running:
                ask_ahead(v, axis, begin, width)
            with e.vector(width) as lane:
                v.bind(axis, begin + lane, *edge)
                take(part * e.i64(width) + lane, None)
        start = start + steps * size if isinstance(start, int) and isinstance(steps, int) else (
            e.share(first + times * e.i64(size)))  # fmt: skip
    if isinstance(start, int) and start == high:
        return
    first = e.i64(start) if isinstance(start, int) else start
    with e.vector(width) as lane:
        at = top - e.i64(width) + lane
        v.bind(axis, at, *edge)
        take(lane, at >= first)


def _steps(v: Values, start: int | Expr, high: int | Expr, size: int) -> int | Expr:
    if isinstance(start, int) and isinstance(high, int):
        return (high - start) // size
    first = v.e.i64(start) if isinstance(start, int) else start
    return v.e.share(v.e.divide_down(high - first, size))


# ---- rows side by side


def rows_side_by_side(v: Values) -> None:
    """Compute rows across the vector axis: each reduction is a loop inside of the lanes."""
    assert v.schedule.vector is not None
    every(v, v.schedule.vector, lambda: _lanes(v))


def _lanes(v: Values) -> None:
    with v.new_row():
        for number in v.schedule.reductions:
            v.row.results[number] = _reduce_lanes(v, number)
        single, whole = _outputs(v)
        v.write(single)
        if whole:
            nest(v, v.schedule.row, lambda: v.write(whole))


def _reduce_lanes(v: Values, number: int) -> Expr:
    e = v.e
    x, kind, dtype = _reduction(v, number)
    total, lane = e.variable(dtype)
    e.store(total, kind.identity(e, dtype), lane)
    nest(v, v.schedule.row, lambda: e.store(total, kind.step(e, total[lane], v.value(x)), lane))
    return total[lane]
