"""Many rows times weights of 4 or 8 bits in int8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .bf16_emitter import PAIRS
from .nbits_int8_tiles import (
    panel_for,
    part_of,
    round_rows,
    rows_for,
    sum_tiles,
    tile_shape,
    unpack_panel,
)
from .nbits_writer import Writer

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ...forms.gemm_nbits import NBitsForm
    from .nbits_int8_tiles import Rows

# Rows that are multiplied by a panel while it is in the first cache.
_ROWS = 256
# Bytes of them that are kept in int8 for all panels, in the second cache; fewer rows than the
# least are not worth it, since a panel is unpacked for each block of rows.
_KEPT_BYTES, _LEAST_KEPT = 1 << 19, 128
# Where they are not kept: panels that a part of the rows is rounded for, and summed. 512 KB of
# sums, 144 KB of rows in int8, and 16 KB of weights.
_PANELS = 16
# Rows whose results are written panel after panel: their pages stay in the TLB meanwhile.
_SLAB = 16


class Int8Writer(Writer):
    """A kernel that rounds rows to int8."""

    def __init__(self, of: NBitsForm, symbol: str, level: str) -> None:
        super().__init__(of, symbol, level)
        self._tile = tile_shape(level)
        self._part_blocks = part_of(self.blocks) // self.blocks.block
        self._panel = panel_for(self.e, self.blocks)

    def large_m(self) -> None:
        """Emit A W, a block of rows after the other."""
        kept = min(_ROWS, _KEPT_BYTES // self.of.depth)
        if kept >= _LEAST_KEPT:
            self._panel_by_panel(kept)
        else:
            self._part_by_part()

    def _panel_by_panel(self, kept: int) -> None:
        """Emit rows in int8 once, then all sums of a panel, and its results."""
        e, of = self.e, self.blocks
        sums, begin = e.aligned(kept * PAIRS, "float32")
        rows = rows_for(e, of, kept, of.count)
        with e.loop(e.divide_up(self.rows, kept)) as block:
            top = e.share(block * e.i64(kept))
            count = e.share(e.minimum(e.i64(kept), self.rows - top))
            source = self.buffers[self.of.a], top, count
            round_rows(e, of, source, (e.i64(0), e.i64(of.count)), rows)
            with e.loop(self.end - self.begin) as number:
                panel = e.share(self.begin + number)
                with e.loop(e.i64(-(-of.count // self._part_blocks))) as part:
                    first = e.share(part * e.i64(self._part_blocks))
                    self._sum(panel, (first, first, part), rows, (begin, count), sums)
                self.finish(panel, (sums, begin), top, count)

    def _part_by_part(self) -> None:
        """Emit sums of some panels, for which a part of the rows is rounded."""
        e, of = self.e, self.blocks
        sums, begin = e.aligned(_PANELS * _ROWS * PAIRS, "float32")
        rows = rows_for(e, of, _ROWS, self._part_blocks)
        with e.loop(e.divide_up(self.rows, _ROWS)) as block:
            top = e.share(block * e.i64(_ROWS))
            count = e.share(e.minimum(e.i64(_ROWS), self.rows - top))
            with e.loop(e.divide_up(self.end - self.begin, _PANELS)) as group:
                start = e.share(self.begin + group * e.i64(_PANELS))
                panels = e.share(e.minimum(e.i64(_PANELS), self.end - start))
                with e.loop(e.i64(-(-of.count // self._part_blocks))) as part:
                    first = e.share(part * e.i64(self._part_blocks))
                    source = self.buffers[self.of.a], top, count
                    round_rows(e, of, source, (first, self._length(first)), rows)
                    with e.loop(panels) as number:
                        panel = e.share(start + number)
                        at = e.share(begin + number * e.i64(_ROWS * PAIRS))
                        self._sum(panel, (first, e.i64(0), part), rows, (at, count), sums)
                with e.loop(e.divide_up(count, _SLAB)) as slab:
                    row = e.share(slab * e.i64(_SLAB))
                    some = e.share(e.minimum(e.i64(_SLAB), count - row))
                    with e.loop(panels) as number:
                        at = number * e.i64(_ROWS * PAIRS) + row * e.i64(PAIRS)
                        found = sums, e.share(begin + at)
                        self.finish(e.share(start + number), found, e.share(top + row), some)

    def _length(self, first: Expr) -> Expr:
        """Return how many blocks a part has."""
        e = self.e
        left = e.i64(self.blocks.count) - first
        return e.share(e.minimum(e.i64(self._part_blocks), left))

    def _sum(
        self,
        panel: Expr,
        part: tuple[Expr, Expr, Expr],
        rows: Rows,
        to: tuple[Expr, Expr],
        sums: Buffer,
    ) -> None:
        """Emit what a part of the depth adds to the sums of a panel.

        Args:
            panel: Number of the panel.
            part: The first block of the weights, that of the rows, and the number of the part.
            rows: In int8.
            to: Where the sums begin, and how many rows there are.
            sums: float32.
        """
        e, of = self.e, self.blocks
        (first, of_rows, number), (at, count) = part, to
        length, column = self._length(first), e.share(panel * e.i64(PAIRS))

        def sum_columns(width: int) -> None:
            unpack_panel(e, of, (column, width), (first, length), self._panel)
            blocks = of_rows, length, e.equal(number, e.i64(0))
            shape = self._tile, count, width
            sum_tiles(e, of, (rows, self._panel), blocks, (sums, at), shape)

        self.either_width(column, sum_columns)
