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
    from ...forms.gemm_nbits import NBitsForm

# Of rows whose sums wait for the next part of the depth, and of panels that they are summed for:
# 512 KB of sums, 128 KB of rows in int8, and 16 KB of weights.
_ROWS, _PANELS = 256, 16
# Rows whose results are written panel after panel: their pages stay in the TLB meanwhile.
_SLAB = 16


class Int8Writer(Writer):
    """A kernel that rounds rows to int8."""

    def __init__(self, of: NBitsForm, symbol: str, level: str) -> None:
        super().__init__(of, symbol, level)
        self._tile = tile_shape(level)

    def large_m(self) -> None:
        """Emit A W, a part of the depth after the other."""
        e, of = self.e, self.blocks
        sums, begin = e.aligned(_PANELS * _ROWS * PAIRS, "float32")
        rows, panel = rows_for(e, of, _ROWS), panel_for(e, of)
        part_blocks = part_of(of) // of.block
        with e.loop(e.divide_up(self.rows, _ROWS)) as block:
            top = e.share(block * e.i64(_ROWS))
            count = e.share(e.minimum(e.i64(_ROWS), self.rows - top))
            with e.loop(e.divide_up(self.end - self.begin, _PANELS)) as group:
                start = e.share(self.begin + group * e.i64(_PANELS))
                panels = e.share(e.minimum(e.i64(_PANELS), self.end - start))
                with e.loop(e.i64(-(-of.count // part_blocks))) as part:
                    first = e.share(part * e.i64(part_blocks))
                    length = e.share(e.minimum(e.i64(part_blocks), e.i64(of.count) - first))
                    source = self.buffers[self.of.a], top, count
                    round_rows(e, of, source, (first, length), rows)
                    is_new = e.equal(part, e.i64(0))
                    with e.loop(panels) as number:
                        column = e.share((start + number) * e.i64(PAIRS))
                        at = e.share(begin + number * e.i64(_ROWS * PAIRS))

                        def sum_columns(width: int) -> None:
                            unpack_panel(e, of, (column, width), (first, length), panel)
                            shape = self._tile, count, width
                            blocks = length, is_new
                            sum_tiles(e, of, (rows, panel), blocks, (sums, at), shape)

                        self.either_width(column, sum_columns)
                with e.loop(e.divide_up(count, _SLAB)) as slab:
                    row = e.share(slab * e.i64(_SLAB))
                    some = e.share(e.minimum(e.i64(_SLAB), count - row))
                    with e.loop(panels) as number:
                        at = number * e.i64(_ROWS * PAIRS) + row * e.i64(PAIRS)
                        found = sums, e.share(begin + at)
                        self.finish(e.share(start + number), found, e.share(top + row), some)
