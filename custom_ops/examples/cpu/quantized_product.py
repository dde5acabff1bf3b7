"""An int8 matrix product in TIR: on tiles (AMX), on int8 dot products (VNNI), or of 16 bits.

Panels of w are packed, 32 columns each; the sums of a block of rows stay in tiles or registers.
"""

# mypy: ignore-errors

from .int8_emitter import LANES, Int8Emitter
from .int8_panel import DEPTH, ROOM, TILE_ROW, WIDTH, Panel, Piece
from .int8_sums import DotSums, TileSums

# Of packed panels that all rows come to before the next ones: half of a second level of cache.
_NEAR_BYTES = 1 << 20
# Rows that come to all of those before the next rows.
_RUN = 32


def quantized_product(x, zero, w, scale, *, level, tiles=True, packed=False):
    """Return a function over columns begin .. end - 1 of the result; called by its op's kernel.

    A panel is computed by the call that its first column is in, so that it is packed once.

    Args:
        x: A placeholder, which tells nothing that is needed here.
        zero: Another.
        w: Another.
        scale: Another.
        level: Of the processor.
        tiles: Whether tiles are used where there are some.
        packed: Whether w is what `packed_weight` makes.
    """
    del x, zero, w, scale
    return _Product(level, may_use_tiles=tiles, is_packed=packed).function()


def packed_weight(w, *, level):
    """Return a function that packs the panels whose first columns are begin .. end - 1.

    Args:
        w: A placeholder, which tells nothing that is needed here.
        level: Of the processor.
    """
    del w
    e = Int8Emitter("packed_weight", processor=level)
    w, packed = (e.pointer(name, "int8") for name in ("w", "packed"))
    k, n, begin, end = (e.size(name) for name in ("k", "n", "begin", "end"))
    panel = Panel(e, packed)
    for column, counts in panels(e, n, begin, end):
        always = e.tir.const(1, "bool")
        panel.keep(w, n, k, Piece(column, counts, e.i64(0), k, always, always))
    return e.function()


def panels(e, n, begin, end):
    """Emit a loop over the panels whose first columns are begin .. end - 1.

    Yields:
        The first column, and how many columns the two strips have.
    """
    first = e.share(e.divide_up(begin, WIDTH))
    with e.loop(e.divide_up(end, WIDTH) - first) as index:
        yield _strips(e, n, first + index)


def near_panels(e, n, begin, end, m, k):
    """Emit the same for runs of rows: those of x stay near for panels that stay near themselves.

    Yields:
        As `panels`, and the first row and the one after the last.
    """
    first = e.share(e.divide_up(begin, WIDTH))
    count = e.share(e.divide_up(end, WIDTH) - first)
    room = e.divide_up(e.tir.max(k, e.i64(1)), TILE_ROW) * e.i64(ROOM)
    near = e.share(e.tir.max(e.divide_down(e.i64(_NEAR_BYTES), room), e.i64(1)))
    with (
        e.loop(e.divide_down(count + near - e.i64(1), near)) as group,
        e.loop(e.divide_up(m, _RUN)) as run,
    ):
        row, done = e.share(run * e.i64(_RUN)), e.share(group * near)
        rows = row, e.share(e.minimum(m, row + e.i64(_RUN)))
        with e.loop(e.minimum(near, count - done)) as index:
            yield *_strips(e, n, first + done + index), rows


def _strips(e, n, panel):
    column = e.share(panel * e.i64(WIDTH))
    return column, [e.share(e.clamped(n - column - e.i64(s * LANES))) for s in range(2)]


class _Product:
    """The kernel in the making."""

    def __init__(self, level, *, may_use_tiles, is_packed):
        self.e = e = Int8Emitter("quantized_product", processor=level, may_use_tiles=may_use_tiles)
        kinds = {"x": "uint8", "zero": "uint8", "w": "int8", "scale": "float32", "y": "float32"}
        x, zero, self.w, self.scale, self.y = (
            e.pointer(name, kind) for name, kind in kinds.items()
        )
        self.m, self.k, self.n = (e.size(name) for name in ("m", "k", "n"))
        self.begin, self.end = e.size("begin"), e.size("end")
        self.zero = e.share(e.cast(zero[e.i64(0)], "int32"))
        self.panel = Panel(e, self.w) if is_packed else Panel(e)
        self.is_packed = is_packed
        self.scales = [e.local(LANES, "float32") for _ in range(2)]
        self.sums = (TileSums if e.has_tiles else DotSums)(e, self.panel, x, self.k)

    def function(self):
        """Return the whole function."""
        e = self.e
        # A depth of 0 comes once: the result is then 0.
        parts = e.share(e.tir.max(e.divide_up(self.k, DEPTH), e.i64(1)))
        for column, counts, rows in self._panels():
            for s, count in enumerate(counts):
                scale = e.some_floats(self.scale, e.share(column + e.i64(s * LANES)), count)
                e.store_row(self.scales[s], scale, 0, LANES)
            with e.loop(parts) as part:
                start = e.share(part * e.i64(DEPTH))
                depth = e.share(e.minimum(e.i64(DEPTH), self.k - start))
                is_first = e.equal(part, e.i64(0))
                is_last = e.equal(part, parts - e.i64(1))
                self._piece(Piece(column, counts, start, depth, is_first, is_last), rows)
        if e.has_tiles:
            e.release_tiles()
        return e.function()

    def _panels(self):
        e, m, n = self.e, self.m, self.n
        if self.is_packed:
            return near_panels(e, n, self.begin, self.end, m, self.k)
        return ((*one, (e.i64(0), m)) for one in panels(e, n, self.begin, self.end))

    def _piece(self, piece, rows):
        if self.is_packed:
            self.panel.take(self.k, self.zero, piece)
        else:
            self.panel.pack(self.w, self.n, self.zero, piece)
        self.sums.blocks(rows, lambda row, count: self._finish(piece, row, count), piece)

    def _finish(self, piece, row, count):
        """Emit the results of rows; sums that go on wait in y, as integers."""
        e = self.e
        is_whole = e.equal(piece.counts[1], e.i64(LANES))
        is_once = e.both(piece.is_first, piece.is_last)
        blocks = []
        for is_simple in (True, False):
            with e.block() as block, e.loop(count) as r:
                sink = e.share((row + r) * self.n + piece.column)
                for s in range(2):
                    at = e.share(sink + e.i64(s * LANES))
                    source = self.sums.at(r, s)
                    self._results(piece, s, source, at, is_simple=is_simple)
            blocks.append(block)
        e.branch(e.both(is_whole, is_once), *blocks)

    def _results(self, piece, s, source, at, *, is_simple):
        e = self.e
        total, result = e.local(LANES, "int32"), e.local(LANES, "float32")
        with e.vector(LANES) as lane:
            value = e.subtract(self.sums.sums[source + lane], self.panel.corrections[s][lane])
            e.store(total, value, lane)
        if is_simple:
            self._scale(s, total, result)
            e.put(self.y, at, e.row(result, 0, LANES), LANES)
            return
        with e.block() as first:
            e.store_row(result, e.tir.Broadcast(e.f32(0.0), LANES), 0, LANES)
        with e.block() as later:
            e.store_row(result, e.some_floats(self.y, at, piece.counts[s]), 0, LANES)
        e.branch(piece.is_first, first, later)
        with e.vector(LANES) as lane:
            e.store(total, e.add(total[lane], e.bitcast(result[lane], "int32")), lane)
        with e.block() as last:
            self._scale(s, total, result)
        with e.block() as kept, e.vector(LANES) as lane:
            e.store(result, e.bitcast(total[lane], "float32"), lane)
        e.branch(piece.is_last, last, kept)
        e.put_floats(self.y, at, piece.counts[s], e.row(result, 0, LANES))

    def _scale(self, s, total, result):
        e = self.e
        with e.vector(LANES) as lane:
            e.store(result, e.cast(total[lane], "float32") * self.scales[s][lane], lane)
