"""Panels of the second operand of an int8 matrix product, packed with zeros around them.

A panel is [group of rows, strip, column, row of the group]: groups of as many rows as one dot
product sums, two strips of columns. A weight that was packed before has a panel for each 32
columns, after the sums of the columns, and room for the sums of each 64 rows.
"""

# mypy: ignore-errors

from dataclasses import dataclass
from typing import Any

from .int8_emitter import LANES

#: Columns of a panel, in two strips of a vector each.
WIDTH = 2 * LANES
#: Its rows at most.
DEPTH = 4096
#: Bytes in a row of a tile, and rows in it.
TILE_ROW, TILE = 64, 16
#: Bytes of the sums of a packed panel's columns, and of its room for each `TILE_ROW` rows.
SUMS = 4 * WIDTH
ROOM = SUMS + TILE_ROW * WIDTH


@dataclass(frozen=True)
class Piece:
    """A part of the depth of a panel; all but `parts` are expressions.

    Args:
        column: The panel's first.
        counts: Of columns in each strip.
        start: The first row of w.
        depth: How many.
        is_first: Whether the sums begin here.
        is_last: Whether they end here.
    """

    column: Any
    counts: Any
    start: Any
    depth: Any
    is_first: Any
    is_last: Any


class Panel:
    """One panel, on the stack if it is given no memory; `corrections`: of its sums, by x's zero.

    Args:
        e: Where to.
        packed: A buffer of bytes.
    """

    def __init__(self, e, packed=None):
        """Declare it."""
        self.e, self.packed, self.origin = e, packed, None
        if packed is None:
            self.packed, self.origin = e.aligned(DEPTH * WIDTH, "int8")
        self.corrections = [e.local(LANES, "int32") for _ in range(2)]

    def pack(self, w, n, zero, piece):
        """Emit a part of a panel that is packed again.

        Args:
            w: Its buffer.
            n: Columns of it.
            zero: Of x.
            piece: What of it.
        """
        e = self.e
        for s, sums in enumerate(self._packed(w, n, piece, is_padded=e.has_tiles)):
            with e.vector(LANES) as lane:
                e.store(self.corrections[s], e.multiply(zero, sums[lane]), lane)

    def take(self, k, zero, piece):
        """Emit where a part lies of a panel that was packed before."""
        e = self.e
        start = self._start(piece.column, k)
        self.origin = e.share(start + e.i64(SUMS) + piece.start * e.i64(WIDTH))
        for one in self.corrections:
            e.store_row(one, e.tir.Broadcast(e.i32(0), LANES), 0, LANES)
        with e.block() as first:  # what is summed comes in parts, and is corrected once
            for s, one in enumerate(self.corrections):
                at = e.share(start + e.i64(s * SUMS // 2))
                sums = e.local(LANES, "int32")
                bits = e.tir.reinterpret(f"int32x{LANES}", e.part(self.packed, at, SUMS // 2))
                e.store_row(sums, bits, 0, LANES)
                with e.vector(LANES) as lane:
                    e.store(one, e.multiply(zero, sums[lane]), lane)
        e.when(e.both(piece.is_first, k > e.i64(0)), first)

    def keep(self, w, n, k, piece):
        """Emit a whole panel with the sums in front of it, for `take`."""
        e = self.e
        start = self._start(piece.column, k)
        self.origin = e.share(start + e.i64(SUMS))
        for s, sums in enumerate(self._packed(w, n, piece, is_padded=True)):
            bits = e.tir.reinterpret(f"int8x{SUMS // 2}", e.row(sums, 0, LANES))
            e.put(self.packed, e.share(start + e.i64(s * SUMS // 2)), bits, SUMS // 2)

    def _start(self, column, k):
        e = self.e
        room = e.divide_up(k, TILE_ROW) * e.i64(ROOM)
        return e.share(e.divide_down(column, WIDTH) * room)

    def _packed(self, w, n, piece, *, is_padded):
        """Emit the panel; returns the sums of the columns of each strip."""
        e = self.e
        sums = e.zeros(4 if e.group == 4 else 2, LANES // 2 if e.group == 4 else LANES)
        full = e.share(e.divide_down(piece.depth, e.group))
        blocks = []
        for is_whole in (True, False):
            with e.block() as block, e.loop(full) as group:
                self._group((w, n), piece, group, sums, is_whole=is_whole)
            blocks.append(block)
        e.branch(e.equal(piece.counts[1], e.i64(LANES)), *blocks)
        with e.block() as rest:
            self._group((w, n), piece, full, sums, is_whole=False)
        done = e.share(e.divide_up(piece.depth, e.group))
        e.when(full < done, rest)
        if is_padded:
            size = LANES * e.group
            steps = e.share(e.divide_up(piece.depth, TILE_ROW) * e.i64(TILE_ROW // e.group))
            with e.loop(steps - done) as more:
                for s in range(2):
                    nothing = e.tir.Broadcast(e.constant(0, "int8"), size)
                    e.put(self.packed, e.share(self.place(s, done + more)), nothing, size)
        return [self._in_order(sums, s) for s in range(2)]

    def _in_order(self, sums, s):
        """Return the sums of a strip's columns, which `_bytes` has in four vectors."""
        e = self.e
        if len(sums) == 2:
            return sums[s]
        made, half = e.local(LANES, "int32"), LANES // 4
        for quarter, one in enumerate(sums):
            value = e.row(one, s * half, half)
            e.store_row(made, value, quarter * half, half)
        return made

    def place(self, s, group):
        """Return where a group of a strip is packed."""
        e = self.e
        return self.origin + group * e.i64(WIDTH * e.group) + e.i64(s * LANES * e.group)

    def _group(self, source, piece, group, sums, *, is_whole):
        e, (w, n), rows = self.e, source, []
        for r in range(e.group):
            depth = e.share(group * e.i64(e.group) + e.i64(r))
            at = e.share((piece.start + depth) * n + piece.column)
            if is_whole:
                row = e.row_bytes(w, at)
            else:
                counts = [e.select(depth < piece.depth, one, e.i64(0)) for one in piece.counts]
                low, high = (
                    e.some_bytes(w, e.share(at + e.i64(s * LANES)), e.share(count))
                    for s, count in enumerate(counts)
                )
                row = e.shuffled(low, high, range(WIDTH))
            rows.append(e.share_row(row, WIDTH, "int8"))
        if e.group == 4:
            self._bytes(rows, group, sums)
        else:
            self._pairs(rows, group, sums)

    def _bytes(self, rows, group, sums):
        """Emit four rows: of each of four vectors one half is of either strip."""
        e = self.e
        ones = e.tir.Broadcast(e.constant(1, "int8"), WIDTH)
        for number, sum_ in enumerate(sums):
            made = e.share_row(e.quarter(rows, number), WIDTH, "int8")
            total = e.dot_half(e.row(sum_, 0, LANES // 2), ones, made)
            e.store_row(sum_, total, 0, LANES // 2)
            for s in range(2):
                place = e.share(self.place(s, group) + e.i64(number * LANES))
                e.put(self.packed, place, e.half(made, s), LANES)

    def _pairs(self, rows, group, sums):
        """Emit two rows, in 16 bits."""
        e = self.e
        for s in range(2):
            lanes = [s * LANES + lane + r * WIDTH for lane in range(LANES) for r in range(2)]
            made = e.share_row(e.shuffled(*rows, lanes), WIDTH, "int8")
            e.put(self.packed, e.share(self.place(s, group)), made, WIDTH)
            wide, ones = (
                made.astype(f"int16x{WIDTH}"),
                e.tir.Broadcast(e.constant(1, "int16"), WIDTH),
            )
            e.store_row(sums[s], e.dot(e.row(sums[s], 0, LANES), ones, wide), 0, LANES)
