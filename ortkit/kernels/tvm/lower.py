"""From a schedule to one TIR function over a range of units."""

from __future__ import annotations

from ortkit.kernels.region import dtypes
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import product, symbols_of
from ortkit.kernels.tvm.emit import Emitter, Expr
from ortkit.kernels.tvm.rows import rows_in_vectors, rows_side_by_side
from ortkit.kernels.tvm.schedule import Schedule
from ortkit.kernels.tvm.sweeps import every, nest, step
from ortkit.kernels.tvm.tiles import write_in_tiles
from ortkit.kernels.tvm.values import Tensor, Values, made_of_rows


def lower(schedule: Schedule, signature: RegionSignature, symbol: str) -> Expr:
    """Return `int32_t symbol(void* tensor..., int64_t size..., int64_t begin, int64_t end)`."""
    e = Emitter(symbol, may_alias=bool(schedule.launch.inplace))
    specs = (*signature.inputs, *signature.outputs)
    tensors = [
        Tensor(e.pointer(f"p{index}", dtypes.memory_dtype(spec.dtype)), spec.dtype)
        for index, spec in enumerate(specs)
    ]
    sizes = {name: e.size(f"size{index}") for index, name in enumerate(symbols_of(specs))}
    begin, end = e.size("begin"), e.size("end")
    v = Values(schedule, e, tensors, sizes, made_of_rows(schedule))
    if schedule.is_flat:
        _flat(v, begin, end)
    elif schedule.across is not None and schedule.units == (schedule.across,):
        nest(v, schedule.inner, lambda: write_in_tiles(v, begin, e.share(end - begin)))
    else:
        _units(v, begin, end)
    return e.function()


def _flat(v: Values, begin: Expr, end: Expr) -> None:
    """Run over a range of the one axis; what is left after whole vectors comes one by one.

    So no point is computed twice, and an output may lie where an input lies.
    """
    e, axis, choices = v.e, v.schedule.vector, v.schedule.choices
    assert axis is not None
    first, width, bounds = begin, choices.vector, (0, axis.extent.static)
    for count in dict.fromkeys((choices.unroll, 1)):
        steps = e.share(e.divide_down(end - first, width * count))
        with e.loop(steps) as index:
            start = first + index * e.i64(width * count)
            step(v, axis, start, count, width, bounds, v.write_all)
        first = e.share(first + steps * e.i64(width * count))
    with e.loop(end - first) as index:
        v.bind(axis, first + index, 0, axis.extent.static)
        v.write_all()


def _units(v: Values, begin: Expr, end: Expr) -> None:
    """Run over units, whose number is split into a position along each of their axes."""
    e, units = v.e, v.schedule.units
    with e.loop(end - begin) as index:
        left = begin + index
        for position, axis in enumerate(units):
            if position < len(units) - 1:
                # Of no points there are no units either: any divisor will do.
                points = product(a.extent for a in units[position + 1 :])
                inside = e.i64(1) if points.static == 0 else v.extent(points)
                at = e.share(e.divide_down(left, inside))
                left = e.share(left - at * inside)
            else:
                at = e.share(left)
            v.bind(axis, at, 0, axis.extent.static)
        nest(v, v.schedule.inner, lambda: _unit(v))


def _unit(v: Values) -> None:
    vector = v.schedule.vector
    if v.schedule.row and v.schedule.is_row_vector:
        rows_in_vectors(v)
    elif v.schedule.row:
        rows_side_by_side(v)
    elif v.schedule.across is not None:
        write_in_tiles(v, v.e.i64(0), v.extent(v.schedule.across.extent))
    elif vector is None:
        v.write_all()
    else:
        every(v, vector, v.write_all)
