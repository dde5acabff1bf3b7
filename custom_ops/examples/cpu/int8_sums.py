"""Sums of int8 dot products for a block of rows, on tiles or in registers, onto the stack."""

# mypy: ignore-errors

from ortkit.custom_ops.tvm.tile.registers import REGISTERS

from .int8_emitter import LANES
from .int8_panel import DEPTH, TILE, TILE_ROW, WIDTH

# Tiles: sums (row, strip) 0 to 3, then two of x, then two of w.
_X, _W = 4, 6


class Sums:
    """Rows of `WIDTH` int32, and what of x is copied: the end of its rows, or all in 16 bits.

    Args:
        e: Where to.
        panel: The packed panel.
        x: [.., k] of uint8.
        k: Its row's length.
        rows: How many at most.
    """

    def __init__(self, e, panel, x, k, rows):
        """Declare them."""
        self.e, self.panel, self.x, self.k, self.rows = e, panel, x, k, rows
        self.sums, self.origin = e.aligned(rows * WIDTH, "int32")
        room = rows * (TILE_ROW if e.group == 4 else DEPTH) + LANES
        self.copied, self.corner = e.aligned(room, "uint8" if e.group == 4 else "int16")

    def at(self, row, s):
        """Return where a row of a strip is."""
        e = self.e
        return e.share(self.origin + row * e.i64(WIDTH) + e.i64(s * LANES))


class TileSums(Sums):
    """Of up to 32 rows, on tiles."""

    def __init__(self, e, panel, x, k):
        """Declare them."""
        super().__init__(e, panel, x, k, 2 * TILE)
        self.shaped = e.local(1, "int64")
        e.store(self.shaped, e.i64(-1), e.i64(0))

    def blocks(self, rows, finish, piece):
        """Emit rows, from one to before another; `finish` emits the results of a block of them."""
        e, (begin, end) = self.e, rows
        with e.loop(e.divide_up(end - begin, self.rows)) as index:
            row = e.share(begin + index * e.i64(self.rows))
            count = e.share(e.minimum(end - row, e.i64(self.rows)))
            with e.block() as other:
                upper = e.share(e.minimum(count, e.i64(TILE)))
                lower = e.share(e.tir.max(count - e.i64(TILE), e.i64(1)))
                full = e.i64(TILE)
                heights = (upper, upper, lower, lower, upper, lower, full, full)
                e.shape_tiles([(height, TILE_ROW) for height in heights])
                e.store(self.shaped, count, e.i64(0))
            e.when(e.not_equal(self.shaped[e.i64(0)], count), other)
            blocks = []
            for tall in (2, 1):
                with e.block() as block:
                    self._tiles(piece, row, count, tall)
                blocks.append(block)
            e.branch(count > e.i64(TILE), *blocks)
            finish(row, count)

    def _tiles(self, piece, row, count, tall):
        """Emit the sums of up to 32 rows."""
        e = self.e
        for r in range(tall):
            for s in range(2):
                e.clear_tile(2 * r + s)
        begin = e.share(row * self.k + piece.start)
        full = e.share(e.divide_down(piece.depth, TILE_ROW))
        with e.loop(full) as step:
            at = begin + step * e.i64(TILE_ROW)
            self._step(
                step, [(self.x, at + e.i64(TILE * r) * self.k) for r in range(tall)], self.k
            )
        rest = e.share(piece.depth - full * e.i64(TILE_ROW))
        with e.block() as partial:
            self._copy_ends(begin + full * e.i64(TILE_ROW), count, rest)
            parts = [(self.copied, self.corner + e.i64(TILE * TILE_ROW * r)) for r in range(tall)]
            self._step(full, parts, e.i64(TILE_ROW))
        e.when(rest > e.i64(0), partial)
        for r in range(tall):
            for s in range(2):
                place = e.share(self.origin + e.i64(r * TILE * WIDTH + s * LANES))
                e.store_tile(2 * r + s, self.sums, place, e.i64(4 * WIDTH))

    def _step(self, step, parts, stride):
        """Emit one step of the depth; `parts`: a buffer and an element for each 16 rows."""
        e = self.e
        for r, (source, at) in enumerate(parts):
            for s in range(2):
                if r == 0:
                    place = e.share(self.panel.place(s, step * e.i64(TILE)))
                    e.load_tile(_W + s, self.panel.packed, place, e.i64(2 * TILE_ROW))
                if s == 0:
                    e.load_tile(_X + r, source, e.share(at), stride)
                e.multiply_tiles(2 * r + s, _X + r, _W + s)

    def _copy_ends(self, begin, count, rest):
        """Emit a copy of the last bytes of rows, fewer than 64, with zeros after them."""
        e = self.e
        counts = [e.share(e.clamped(rest - e.i64(q * LANES))) for q in range(TILE_ROW // LANES)]
        with e.loop(count) as r:
            for q, number in enumerate(counts):
                at = e.share(begin + r * self.k + e.i64(q * LANES))
                sink = e.share(self.corner + r * e.i64(TILE_ROW) + e.i64(q * LANES))
                e.put(self.copied, sink, self.e.unsigned_bytes(self.x, at, number), LANES)


class DotSums(Sums):
    """Of some rows, in registers."""

    def __init__(self, e, panel, x, k):
        """Declare them."""
        super().__init__(e, panel, x, k, 8 if REGISTERS[e.processor].lanes == LANES else 2)

    def blocks(self, rows, finish, piece):
        """Emit rows, from one to before another; `finish` emits the results of a block of them."""
        e, (done, end) = self.e, rows
        for size in (self.rows, 1):
            number = e.share(e.divide_down(end - done, size))
            with e.loop(number) as index:
                row = e.share(done + index * e.i64(size))
                self._dots(piece, row, size)
                finish(row, e.i64(size))
            done = e.share(done + number * e.i64(size))

    def _dots(self, piece, row, size):
        """Emit the sums of some rows: two vectors of them in each."""
        e = self.e
        totals = [e.zeros(2, LANES) for _ in range(size)]
        begins = [e.share((row + e.i64(r)) * self.k + piece.start) for r in range(size)]
        if e.group == 2:
            self._widen(begins, piece.depth)
            begins = [self.corner + e.i64(r * DEPTH) for r in range(size)]
            source, count = self.copied, e.divide_up(piece.depth, 2)
        else:
            source, count = self.x, e.share(e.divide_down(piece.depth, 4))
        with e.loop(count) as group:
            step = e.share(group * e.i64(e.group))
            self._add(totals, group, source, [begin + step for begin in begins])
        if e.group == 4:
            rest = e.share(piece.depth - count * e.i64(4))
            with e.block() as partial:
                for r, begin in enumerate(begins):
                    end = self.e.unsigned_bytes(self.x, e.share(begin + count * e.i64(4)), rest)
                    e.put(self.copied, self.corner + e.i64(r * LANES), end, LANES)
                ends = [self.corner + e.i64(r * LANES) for r in range(size)]
                self._add(totals, count, self.copied, ends)
            e.when(rest > e.i64(0), partial)
        for r, one in enumerate(totals):
            for s, total in enumerate(one):
                place = self.origin + e.i64(r * WIDTH + s * LANES)
                e.put(self.sums, place, e.row(total, 0, LANES), LANES)

    def _add(self, totals, group, source, places):
        """Emit one step of the depth; `places`: of a group in each row of the source."""
        e = self.e
        size = LANES * e.group
        columns = []
        for s in range(2):
            column = e.part(self.panel.packed, e.share(self.panel.place(s, group)), size)
            columns.append(e.share_row(column.astype(f"{e.operand}x{size}"), size, e.operand))
        for one, place in zip(totals, places, strict=True):
            bits = e.tir.reinterpret("uint32", e.part(source, e.share(place), e.group))
            factor = e.share_row(e.everywhere(bits), size, e.operand)
            for total, column in zip(one, columns, strict=True):
                e.store_row(total, e.dot(e.row(total, 0, LANES), factor, column), 0, LANES)

    def _widen(self, begins, depth):
        """Emit rows of x in 16 bits, with a zero after an odd one."""
        e = self.e
        full = e.share(e.divide_down(depth, LANES))
        for r, begin in enumerate(begins):
            sink = e.share(self.corner + e.i64(r * DEPTH))
            with e.loop(full) as index:
                step = e.share(index * e.i64(LANES))
                wide = e.part(self.x, e.share(begin + step), LANES).astype(f"int16x{LANES}")
                e.put(self.copied, e.share(sink + step), wide, LANES)
            at = e.share(full * e.i64(LANES))
            rest = self.e.unsigned_bytes(self.x, e.share(begin + at), depth - at).astype(
                f"int16x{LANES}"
            )
            e.put(self.copied, e.share(sink + at), rest, LANES)
