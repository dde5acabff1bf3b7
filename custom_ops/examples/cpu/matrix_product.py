"""A matrix product in TIR: panels of w are packed, tiles of the result stay in registers."""

# mypy: ignore-errors

from ortkit.custom_ops.tvm.tile.emitter import TileEmitter
from ortkit.custom_ops.tvm.tile.gemm_tile import multiply_add
from ortkit.custom_ops.tvm.tile.registers import REGISTERS, VECTOR

#: Of a packed panel: rows of w, which with its columns take half of the first level of cache.
DEPTH = 128


def matrix_product(x, w, *, level):
    """Return a function over rows begin .. end - 1 of the result; called by its op's kernel.

    Args:
        x: A placeholder, which tells nothing that is needed here.
        w: Another.
        level: Of the processor.
    """
    del x, w
    file = REGISTERS[level]
    parts = VECTOR // file.lanes
    vectors = 4 if file.count // parts >= 28 else 1
    rows = min(6, (file.count // parts - 1 - vectors) // vectors)
    e = TileEmitter("matrix_product")
    buffers = [e.pointer(name, "float32") for name in ("x", "w", "y")]
    m, k, n = (e.size(name) for name in ("m", "k", "n"))
    del m
    begin, end = e.size("begin"), e.size("end")
    width = vectors * VECTOR
    with e.loop(e.divide_up(n, width)) as panel:
        column = e.share(panel * e.i64(width))
        columns = e.share(e.minimum(e.i64(width), n - column))
        # A depth of 0 comes once: the result is then 0.
        with e.loop(e.divide_up(e.tir.max(k, e.i64(1)), DEPTH)) as part:
            start = e.share(part * e.i64(DEPTH))
            depth = e.share(e.minimum(e.i64(DEPTH), k - start))
            packed = _pack(e, buffers[1], (start, depth, column, columns, n), vectors)
            work = (buffers, packed, start, depth, column, columns, k, n)
            tiles = e.share(e.divide_down(end - begin, rows))
            with e.loop(tiles) as tile:
                _tile(e, work, rows, vectors, begin + tile * e.i64(rows))
            done = e.share(begin + tiles * e.i64(rows))
            with e.loop(end - done) as row:
                _tile(e, work, 1, vectors, done + row)
    return e.function()


def _pack(e, w, place, vectors):
    """Return a panel of w without gaps, with zeros beside its last column."""
    start, depth, column, columns, n = place
    width = vectors * VECTOR
    packed = e.local(DEPTH * width, "float32")
    with e.block() as whole, e.loop(depth) as d:
        source = e.share((start + d) * n + column)
        for vector in range(vectors):
            at = e.i64(vector * VECTOR)
            with e.vector(VECTOR) as lane:
                e.store(packed, w[source + at + lane], d * e.i64(width) + at + lane)
    with e.block() as partial, e.loop(depth) as d:
        source = e.share((start + d) * n + column)
        for vector in range(vectors):
            with e.vector(VECTOR) as lane:
                at = d * e.i64(width) + e.i64(vector * VECTOR) + lane
                e.store(packed, e.f32(0.0), at)
        with e.loop(columns) as c:
            e.store(packed, w[source + c], d * e.i64(width) + c)
    e.branch(e.equal(columns, e.i64(width)), whole, partial)
    return packed


def _tile(e, work, rows, vectors, first):
    """Add one part of the depth to one tile of the result, which the first part begins with 0."""
    (x, _, y), packed, start, depth, column, columns, k, n = work
    width = vectors * VECTOR
    row = e.share(first)
    registers = [[e.scratch() for _ in range(vectors)] for _ in range(rows)]
    for one in registers:
        for register in one:
            with e.vector(VECTOR) as lane:
                e.store(register, e.f32(0.0), lane)
    sources = [e.share((row + e.i64(r)) * k + start) for r in range(rows)]
    with e.loop(depth) as d:
        multiply_add(
            e, registers, lambda r: x[sources[r] + d],
            lambda vector, lane: packed[d * e.i64(width) + e.i64(vector * VECTOR) + lane],
        )  # fmt: skip
    edge = e.scratch(rows * width)
    is_first, is_whole = e.equal(start, e.i64(0)), e.equal(columns, e.i64(width))

    def write(*, adds):
        for r, one in enumerate(registers):
            sink = e.share((row + e.i64(r)) * n + column)
            for vector, register in enumerate(one):
                at = e.i64(vector * VECTOR)
                with e.vector(VECTOR) as lane:
                    value = register[lane]
                    value = value + y[sink + at + lane] if adds else value
                    e.store(y, value, sink + at + lane)

    with e.block() as begins:
        write(adds=False)
    with e.block() as adds:
        write(adds=True)
    with e.block() as whole:
        e.branch(is_first, begins, adds)
    with e.block() as partial:
        for r, one in enumerate(registers):
            for vector, register in enumerate(one):
                with e.vector(VECTOR) as lane:
                    at = e.i64(r * width + vector * VECTOR) + lane
                    e.store(edge, register[lane], at)
        with e.loop(e.i64(rows)) as r:
            sink = e.share((row + r) * n + column)
            with e.loop(columns) as c:
                before = e.tir.if_then_else(is_first, e.f32(0.0), y[sink + c])
                e.store(y, edge[r * e.i64(width) + c] + before, sink + c)
    e.branch(is_whole, whole, partial)
