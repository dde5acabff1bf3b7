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
from ortkit.kernels.tvm.sweeps import one_by_one
from ortkit.kernels.tvm.values import Values


def write_in_tiles(v: Values, begin: Expr, count: Expr) -> None:
    """Store all outputs over `count` points of the axis across, from `begin` on, and all vectors.

    The last tile ends where the axis ends, and so repeats some points of the one before. An axis
    that is shorter than a tile goes point by point.
    """
    e, vector, across = v.e, _vector(v), _across(v)
    length = v.extent(vector.extent)
    size = v.schedule.choices.tile
    rows, columns = e.divide_up(count, size), e.divide_up(length, size)
    with e.block() as wide, e.loop(rows) as i, e.loop(columns) as j:
        row = e.share(begin + e.minimum(i * e.i64(size), count - e.i64(size)))
        column = e.share(e.minimum(j * e.i64(size), length - e.i64(size)))
        _write_tile(v, row, column)
    with e.block() as narrow, e.loop(count) as index:
        v.bind(across, begin + index)
        one_by_one(v, vector, length, v.write_all)
    least = e.i64(size)
    e.branch(e.both(count >= least, length >= least), wide, narrow)


def _write_tile(v: Values, row: Expr, column: Expr) -> None:
    e, vector, across, size = v.e, _vector(v), _across(v), v.schedule.choices.tile
    tiles = {n: _transposed(v, n, row, column) for n in sorted(v.schedule.trace.far)}
    with e.loop(e.i64(size)) as index, e.vector(size) as lane:
        v.bind(across, row + index)
        v.bind(vector, column + lane)
        at = index * e.i64(size) + lane
        v.tiles = {number: tile[at] for number, tile in tiles.items()}
        v.write_all()
        v.tiles = {}


def _transposed(v: Values, number: int, row: Expr, column: Expr) -> Buffer:
    """Return a tile of an input, [across][vector], as its elements lie in memory."""
    e, tensor, width = v.e, v.tensors[number], v.schedule.choices.tile
    dtype = memory_dtype(tensor.dtype)
    loaded, tile = e.local(width * width, dtype), e.local(width * width, dtype)
    with e.unrolled(width) as index, e.vector(width) as lane:
        v.bind(_vector(v), column + index)
        v.bind(_across(v), row + lane)
        value = tensor.buffer[v.offset(number, HERE)]
        e.store(loaded, value, index * e.i64(width) + lane)
    rows = [e.row(loaded, index * width, width) for index in range(width)]
    # Blocks off the diagonal change places, from halves of the tile down to single elements.
    size = width // 2
    while size:
        first = [width + (lane ^ size) if lane & size else lane for lane in range(width)]
        second = [width + lane if lane & size else lane ^ size for lane in range(width)]
        for index in range(width):
            if not index & size:
                a, b = rows[index], rows[index | size]
                for target, lanes in ((index, first), (index | size, second)):
                    row = e.shuffled(a, b, lanes)
                    if dtype.startswith("float"):
                        # LLVM would join the shuffles of two stages, to many more instructions.
                        row = e.fence(row)
                    rows[target] = e.share_row(row, width, dtype)
        size //= 2
    for index, value in enumerate(rows):
        e.store_row(tile, value, index * width, width)
    return tile


def _vector(v: Values) -> Axis:
    assert v.schedule.vector is not None
    return v.schedule.vector


def _across(v: Values) -> Axis:
    assert v.schedule.across is not None
    return v.schedule.across
