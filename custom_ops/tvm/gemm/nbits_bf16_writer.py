"""Many rows times weights of 4 or 8 bits in bfloat16, by the tiles of AMX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...forms.gemm_nbits import STEP
from ..tile.transpose import transposed
from .bf16_blocks import Operands, Steps, shape_tiles, tile_block
from .bf16_emitter import PAIRS, TILE
from .nbits_weights import PART_STEPS, round_column
from .nbits_writer import Writer

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

# Rows that are multiplied by a panel of weights, at most. A panel is unpacked for each such block.
_ROWS = 256
# Bytes of them that are kept in bfloat16 for all panels, in the second cache; fewer rows than the
# least are not worth it. Rows that are kept are rounded once.
_KEPT_BYTES, _LEAST_KEPT = 1 << 20, 128
# Where they are not kept: panels that a part of the rows is rounded for, and summed. 512 KB of
# sums, 256 KB of rows in bfloat16, and 32 KB of weights.
_PANELS = 16
_DEPTH = PART_STEPS * STEP
# Between columns: those of a power of two would lie in the same places of the cache.
_STRIDE = _DEPTH + PAIRS


class Bf16Writer(Writer):
    """A kernel that rounds weights and rows to bfloat16.

    It computes W^T A^T: columns of W are the rows of tiles, as they lie; A is transposed.
    """

    def large_m(self) -> None:
        """Emit A W, a block of rows after the other."""
        e = self.e
        shape_tiles(e, e.i64(TILE), e.i64(TILE))
        kept = min(_ROWS, _KEPT_BYTES // 2 // self.of.depth // PAIRS * PAIRS)
        if kept >= _LEAST_KEPT:
            self._panel_by_panel(kept)
        else:
            self._part_by_part()
        e.release_tiles()

    def _panel_by_panel(self, kept: int) -> None:
        """Emit rows in bfloat16 once, then all sums of a panel, and its results."""
        e = self.e
        depth, steps = self.of.depth, self.blocks.steps
        sums, begin = e.aligned(kept * PAIRS, "float32")
        rows = e.aligned(kept * depth, "uint16")
        weights = e.aligned(PAIRS * _STRIDE, "uint16")
        operands = Operands(weights[0], _STRIDE, rows[0], depth, rows[1])
        with e.loop(e.divide_up(self.rows, kept)) as block:
            top = e.share(block * e.i64(kept))
            count = e.share(e.minimum(e.i64(kept), self.rows - top))
            self._round_rows((top, count), (e.i64(0), e.i64(steps)), (*rows, depth))
            with e.loop(self.end - self.begin) as number:
                panel = e.share(self.begin + number)
                column = e.share(panel * e.i64(PAIRS))
                with e.loop(e.i64(-(-steps // PART_STEPS))) as part:
                    first, length = self._part(part)
                    some = Steps(first, length, e.equal(part, e.i64(0)), None, e.i64(0))
                    self._sum_panel(column, (first, weights), operands, some, (sums, begin, count))
                self._finish_panel(panel, (sums, begin), top, count)

    def _part_by_part(self) -> None:
        """Emit sums of some panels, for which a part of the rows is rounded."""
        e = self.e
        sums = e.aligned(_PANELS * _ROWS * PAIRS, "float32")
        rows = e.aligned(_ROWS * _DEPTH, "uint16")
        weights = e.aligned(PAIRS * _STRIDE, "uint16")
        operands = Operands(weights[0], _STRIDE, rows[0], _DEPTH, rows[1])
        with e.loop(e.divide_up(self.rows, _ROWS)) as block:
            top = e.share(block * e.i64(_ROWS))
            count = e.share(e.minimum(e.i64(_ROWS), self.rows - top))
            with e.loop(e.divide_up(self.end - self.begin, _PANELS)) as group:
                panel = e.share(self.begin + group * e.i64(_PANELS))
                panels = e.share(e.minimum(e.i64(_PANELS), self.end - panel))
                with e.loop(e.i64(-(-self.blocks.steps // PART_STEPS))) as part:
                    first, length = self._part(part)
                    self._round_rows((top, count), (first, length), (*rows, _DEPTH))
                    steps = Steps(e.i64(0), length, e.equal(part, e.i64(0)), None, e.i64(0))
                    with e.loop(panels) as number:
                        column = e.share((panel + number) * e.i64(PAIRS))
                        at = e.share(sums[1] + number * e.i64(_ROWS * PAIRS))
                        self._sum_panel(
                            column, (first, weights), operands, steps, (sums[0], at, count)
                        )
                with e.loop(panels) as number:
                    at = e.share(sums[1] + number * e.i64(_ROWS * PAIRS))
                    self._finish_panel(e.share(panel + number), (sums[0], at), top, count)

    def _part(self, part: Expr) -> tuple[Expr, Expr]:
        """Return the first step of a part of the depth, and how many it has."""
        e = self.e
        first = e.share(part * e.i64(PART_STEPS))
        return first, e.share(e.minimum(e.i64(PART_STEPS), e.i64(self.blocks.steps) - first))

    def _round_rows(
        self, rows: tuple[Expr, Expr], steps: tuple[Expr, Expr], sink: tuple[Buffer, Expr, int]
    ) -> None:
        """Emit a part of rows in bfloat16, as `bf16_blocks` packs the strips of a matrix.

        In place of rows behind the last one it is read again.

        Args:
            rows: The first, and how many there are.
            steps: Of the depth: the first, and how many there are.
            sink: Where to, where that begins, and elements of a row there.
        """
        e, source = self.e, self.buffers[self.of.a]
        (top, count), (first, length) = rows, steps
        with e.loop(e.divide_up(count, TILE)) as strip:
            begins = [
                e.share(
                    (top + e.minimum(strip * e.i64(TILE) + e.i64(row), count - e.i64(1)))
                    * e.i64(self.of.depth)
                    + first * e.i64(STEP)
                )
                for row in range(TILE)
            ]
            to = e.share(sink[1] + strip * e.i64(sink[2] * TILE))
            with e.loop(length) as step:
                at = e.share(step * e.i64(STEP))
                pairs = []
                for begin in begins:
                    low, high = (
                        e.part(source, begin + at + e.i64(half), TILE) for half in (0, TILE)
                    )
                    bits = e.tir.reinterpret(f"float32x{TILE}", e.rounded_pair(low, high))
                    pairs.append(e.share_row(bits, TILE, "float32"))
                for number, row in enumerate(transposed(e, pairs)):
                    bits = e.tir.reinterpret(f"uint16x{PAIRS}", row)
                    e.put(sink[0], to + at * e.i64(TILE) + e.i64(number * PAIRS), bits, PAIRS)

    def _sum_panel(
        self,
        column: Expr,
        weights: tuple[Expr, tuple[Buffer, Expr]],
        operands: Operands,
        steps: Steps,
        sums: tuple[Buffer, Expr, Expr],
    ) -> None:
        """Emit the sums of a panel and all rows for a part of the depth.

        Args:
            column: The panel's first.
            weights: The first step of the part, and where the panel becomes bfloat16.
            operands: That, and the rows.
            steps: The part, as it lies there.
            sums: Squares of 32 columns by 32 rows, where they begin, and how many rows there are.
        """
        e = self.e
        (first, sink), (buffer, begin, count) = weights, sums

        def sum_columns(width: int) -> None:
            with e.loop(e.i64(width)) as number:
                at = e.share(sink[1] + number * e.i64(_STRIDE))
                of = e.share(column + number)
                round_column(e, self.blocks, of, (first, steps.count), (sink[0], at))
            with e.loop(e.divide_up(count, PAIRS)) as index:
                to = buffer, e.share(begin + index * e.i64(PAIRS * PAIRS))
                at = sink[1], e.share(index * e.i64(2))
                branches = []
                for strips in (2, 1):
                    with e.block() as branch:
                        tile_block(e, operands, at, (width // TILE, strips), steps, to)
                    branches.append(branch)
                e.branch(count - index * e.i64(PAIRS) > e.i64(TILE), *branches)

        self.either_width(column, sum_columns)

    def _finish_panel(
        self, panel: Expr, sums: tuple[Buffer, Expr], top: Expr, count: Expr
    ) -> None:
        """Emit the results of a panel."""
        e = self.e
        square = e.aligned(PAIRS * PAIRS, "float32")
        with e.loop(e.divide_up(count, PAIRS)) as index:
            at = e.share(sums[1] + index * e.i64(PAIRS * PAIRS))
            with e.loop(e.i64(2)) as strip, e.loop(e.i64(2)) as half:
                offset = e.share(at + strip * e.i64(TILE * PAIRS) + half * e.i64(TILE))
                # LLVM read each number by itself otherwise, and put vectors together of them.
                columns = [
                    e.share_row(
                        e.alone(e.part(sums[0], offset + e.i64(n * PAIRS), TILE)), TILE, "float32"
                    )
                    for n in range(TILE)
                ]
                to = e.share(square[1] + half * e.i64(TILE * PAIRS) + strip * e.i64(TILE))
                for number, row in enumerate(transposed(e, columns)):
                    e.put(square[0], to + e.i64(number * PAIRS), row, TILE)
            begin = e.share(index * e.i64(PAIRS))
            left = e.share(e.minimum(e.i64(PAIRS), count - begin))
            self.finish(panel, square, e.share(top + begin), left)
