"""Panels of the second operand of a product of bytes, packed with zeros around them."""

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
    """One panel on the stack: [strip, group of rows, column, row of the group]."""

    def __init__(self, e):
        """Declare it."""
        self.e = e
        self.packed, self.origin = e.aligned(DEPTH * WIDTH, e.operand)
        self.corrections = [e.local(LANES, "int32") for _ in range(2)]

    def pack(self, w, n, zero, piece):
        """Emit a panel, and what x's zero makes of the sum of each column.

        Args:
            w: Its buffer.
            n: Columns of it.
            zero: Of x.
            piece: What of it.
        """
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
        if e.has_tiles:
            steps = e.share(e.divide_up(piece.depth, TILE_ROW) * e.i64(TILE))
            with e.loop(steps - done) as more:
                for s in range(2):
                    nothing = e.tir.Broadcast(e.constant(0, "int8"), TILE_ROW)
                    e.put(self.packed, self.place(s, done + more), nothing, TILE_ROW)
        for s in range(2):
            ordered = self._in_order(sums, s)
            with e.vector(LANES) as lane:
                e.store(self.corrections[s], e.multiply(zero, ordered[lane]), lane)

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
        return self.origin + e.i64(s * DEPTH * LANES) + group * e.i64(LANES * e.group)

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
            made = e.shuffled(*rows, lanes).astype(f"int16x{WIDTH}")
            made = e.share_row(made, WIDTH, "int16")
            e.put(self.packed, e.share(self.place(s, group)), made, WIDTH)
            ones = e.tir.Broadcast(e.constant(1, "int16"), WIDTH)
            e.store_row(sums[s], e.dot(e.row(sums[s], 0, LANES), ones, made), 0, LANES)
