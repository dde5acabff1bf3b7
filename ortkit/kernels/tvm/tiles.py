"""Tiles: reading tensors across the direction in which they lie, through registers.

Neighbours along the vector axis are far apart in such a tensor, and loading them one by one takes
several times as long as the memory does. A square tile is loaded along the other axis, a vector a
row, and transposed by shuffles.
"""

from __future__ import annotations

from ortkit.kernels.region.axes import Axis
from ortkit.kernels.region.dtypes import memory_dtype
from ortkit.kernels.region.indices import HERE
from ortkit.kernels.tvm.emit import Buffer, Expr
from ortkit.kernels.tvm.sweeps import VECTOR, one_by_one
from ortkit.kernels.tvm.values import Values


def write_in_tiles(v: Values, begin: Expr, count: Expr) -> None:
    """Store all outputs over `count` points of the axis across, from `begin` on, and all vectors.

    The last tile ends where the axis ends, and so repeats some points of the one before. An axis
    that is shorter than a tile goes point by point.
    """
    e, vector, across = v.e, _vector(v), _across(v)
    length = v.extent(vector.extent)
    rows, columns = e.divide_up(count, VECTOR), e.divide_up(length, VECTOR)
    with e.block() as wide, e.loop(rows) as i, e.loop(columns) as j:
        row = e.share(begin + e.minimum(i * e.i64(VECTOR), count - e.i64(VECTOR)))
        column = e.share(e.minimum(j * e.i64(VECTOR), length - e.i64(VECTOR)))
        _write_tile(v, row, column)
    with e.block() as narrow, e.loop(count) as index:
        v.bind(across, begin + index)
        one_by_one(v, vector, length, v.write_all)
    width = e.i64(VECTOR)
    e.branch(e.both(count >= width, length >= width), wide, narrow)


def _write_tile(v: Values, row: Expr, column: Expr) -> None:
    e, vector, across = v.e, _vector(v), _across(v)
    tiles = {n: _transposed(v, n, row, column) for n in sorted(v.schedule.trace.far)}
    with e.loop(e.i64(VECTOR)) as index, e.vector(VECTOR) as lane:
        v.bind(across, row + index)
        v.bind(vector, column + lane)
        at = index * e.i64(VECTOR) + lane
        v.tiles = {number: tile[at] for number, tile in tiles.items()}
        v.write_all()
        v.tiles = {}


def _transposed(v: Values, number: int, row: Expr, column: Expr) -> Buffer:
    """Return a tile of an input, [across][vector], as its elements lie in memory."""
    e, tensor = v.e, v.tensors[number]
    dtype = memory_dtype(tensor.dtype)
    loaded, tile = e.local(VECTOR * VECTOR, dtype), e.local(VECTOR * VECTOR, dtype)
    with e.unrolled(VECTOR) as index, e.vector(VECTOR) as lane:
        v.bind(_vector(v), column + index)
        v.bind(_across(v), row + lane)
        value = tensor.buffer[v.offset(number, HERE)]
        e.store(loaded, value, index * e.i64(VECTOR) + lane)
    rows = [e.row(loaded, index * VECTOR, VECTOR) for index in range(VECTOR)]
    # Blocks off the diagonal change places, from halves of the tile down to single elements.
    size = VECTOR // 2
    while size:
        first = [VECTOR + (lane ^ size) if lane & size else lane for lane in range(VECTOR)]
        second = [VECTOR + lane if lane & size else lane ^ size for lane in range(VECTOR)]
        for index in range(VECTOR):
            if not index & size:
                a, b = rows[index], rows[index | size]
                for place, lanes in ((index, first), (index | size, second)):
                    row = e.shuffled(a, b, lanes)
                    if dtype.startswith("float"):
                        # LLVM would join the shuffles of two stages, to many more instructions.
                        row = e.fence(row)
                    rows[place] = e.share_row(row, VECTOR, dtype)
        size //= 2
    for index, value in enumerate(rows):
        e.store_row(tile, value, index * VECTOR, VECTOR)
    return tile


def _vector(v: Values) -> Axis:
    assert v.schedule.vector is not None
    return v.schedule.vector


def _across(v: Values) -> Axis:
    assert v.schedule.across is not None
    return v.schedule.across
