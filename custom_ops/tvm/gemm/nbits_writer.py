"""Writes the kernel of a product with weights in 4 or 8 bits.

A few rows are multiplied in float32 while the weights come from memory, which bounds them. For
more rows the weights become panels of bfloat16, which tiles multiply by all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ortkit.kernels.sizes import product

from ...forms.gemm_nbits import STEP, NBitsForm
from ..tile.transpose import transposed
from .bf16_blocks import Operands, Steps, shape_tiles, tile_block
from .bf16_emitter import PAIRS, TILE, Bf16Emitter
from .bf16_epilogue import Finisher
from .nbits_weights import PART_STEPS, Blocks, Rows, copy_row, dot_column, round_column, rows_for

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

#: Rows that are multiplied in float32, at most.
SMALL_M = 4
# Of rows whose sums wait for the next part of the depth, and of panels that they are summed for:
# 256 KB of sums, 256 KB of rows in bfloat16, and 32 KB of weights.
_ROWS, _PANELS = 256, 8
_DEPTH = PART_STEPS * STEP
# Between columns: those of a power of two would lie in the same places of the cache.
_STRIDE = _DEPTH + PAIRS


class Writer:
    """One kernel in the making."""

    def __init__(self, of: NBitsForm, symbol: str) -> None:
        self.of = of
        self.e = e = Bf16Emitter(symbol)
        self.buffers, self.begin, self.end = e.parameters(of.signature)
        zero = None if of.zero is None else self.buffers[of.zero]
        weight, scale = self.buffers[of.weight], self.buffers[of.scale]
        self.blocks = Blocks(weight, scale, zero, of.depth, of.block, of.bits)
        inputs = len(of.signature.inputs)
        self.finisher = Finisher(e, of.finish, self.buffers, inputs, of.columns)
        self.rows = e.share(e.extent(product(of.leading)))

    def function(self) -> Expr:
        """Return the function that computes the panels of columns begin .. end - 1."""
        e = self.e
        with e.block() as few:
            self._small_m()
        with e.block() as many:
            self._large_m()
        e.branch(self.rows <= e.i64(SMALL_M), few, many)
        return e.function()

    def _small_m(self) -> None:
        """Emit A W, for 1, 2 or 4 rows at once; the last of three rows is taken twice."""
        e = self.e
        rows = rows_for(e, self.blocks, SMALL_M)
        sums = e.local(SMALL_M * PAIRS, "float32")
        for count in (1, 2, SMALL_M):
            with e.block() as some:
                self._together(count, rows, sums)
            is_least = e.both(self.rows > e.i64(count // 2), self.rows <= e.i64(count))
            e.when(is_least, some)

    def _together(self, count: int, rows: Rows, sums: Buffer) -> None:
        """Emit the products of all rows, at most `count`, with the panels."""
        e, depth = self.e, self.of.depth
        for number in range(count):
            row = e.minimum(e.i64(number), self.rows - e.i64(1))
            source = self.buffers[self.of.a], e.share(row * e.i64(depth))
            copy_row(e, self.blocks, source, rows, number)
        with e.loop(self.end - self.begin) as index:
            panel = e.share(self.begin + index)
            begin = e.share(panel * e.i64(PAIRS))
            left = e.share(e.minimum(e.i64(PAIRS), e.i64(self.of.columns) - begin))
            with e.loop(left) as column:
                totals = dot_column(e, self.blocks, rows, count, e.share(begin + column))
                for number, total in enumerate(totals):
                    whole = e.scratch()
                    e.store_row(whole, total, 0, TILE)
                    e.store(sums, e.sum_of(whole), e.i64(number * PAIRS) + column)
            self._finish(panel, (sums, e.i64(0)), e.i64(0), self.rows)

    def _large_m(self) -> None:
        """Emit W^T A^T: columns of W are the rows of tiles, as they lie; A is transposed."""
        e = self.e
        sums = e.aligned(_PANELS * _ROWS * PAIRS, "float32")
        rows = e.aligned(_ROWS * _DEPTH, "uint16")
        weights = e.aligned(PAIRS * _STRIDE, "uint16")
        operands = Operands(weights[0], _STRIDE, rows[0], _DEPTH, rows[1])
        shape_tiles(e, e.i64(TILE), e.i64(TILE))
        with e.loop(e.divide_up(self.rows, _ROWS)) as block:
            top = e.share(block * e.i64(_ROWS))
            count = e.share(e.minimum(e.i64(_ROWS), self.rows - top))
            with e.loop(e.divide_up(self.end - self.begin, _PANELS)) as group:
                panel = e.share(self.begin + group * e.i64(_PANELS))
                panels = e.share(e.minimum(e.i64(_PANELS), self.end - panel))
                with e.loop(e.i64(-(-self.blocks.steps // PART_STEPS))) as part:
                    first = e.share(part * e.i64(PART_STEPS))
                    length = e.share(
                        e.minimum(e.i64(PART_STEPS), e.i64(self.blocks.steps) - first)
                    )
                    self._round_rows((top, count), (first, length), rows)
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
        e.release_tiles()

    def _round_rows(
        self, rows: tuple[Expr, Expr], steps: tuple[Expr, Expr], sink: tuple[Buffer, Expr]
    ) -> None:
        """Emit a part of rows in bfloat16, as `bf16_blocks` packs the strips of a matrix.

        In place of rows behind the last one it is read again.
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
            to = e.share(sink[1] + strip * e.i64(_DEPTH * TILE))
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

        self._either_width(column, sum_columns)

    def _finish_panel(
        self, panel: Expr, sums: tuple[Buffer, Expr], top: Expr, count: Expr
    ) -> None:
        """Emit the results of a panel."""
        e = self.e
        square = e.aligned(PAIRS * PAIRS, "float32")
        with e.loop(e.divide_up(count, PAIRS)) as index:
            at = e.share(sums[1] + index * e.i64(PAIRS * PAIRS))
            with e.loop(e.i64(2)) as strip, e.loop(e.i64(2)) as half:
                place = e.share(at + strip * e.i64(TILE * PAIRS) + half * e.i64(TILE))
                columns = [
                    e.share_row(e.part(sums[0], place + e.i64(n * PAIRS), TILE), TILE, "float32")
                    for n in range(TILE)
                ]
                to = e.share(square[1] + half * e.i64(TILE * PAIRS) + strip * e.i64(TILE))
                for number, row in enumerate(transposed(e, columns)):
                    e.put(square[0], to + e.i64(number * PAIRS), row, TILE)
            begin = e.share(index * e.i64(PAIRS))
            left = e.share(e.minimum(e.i64(PAIRS), count - begin))
            self._finish(panel, square, e.share(top + begin), left)

    def _either_width(self, column: Expr, write: Callable[[int], None]) -> None:
        """Emit a whole panel or the last one, which may have 16 columns."""
        e, columns = self.e, self.of.columns
        if columns % PAIRS == 0 or columns < PAIRS:
            write(min(columns, PAIRS))
            return
        with e.block() as whole:
            write(PAIRS)
        with e.block() as last:
            write(columns % PAIRS)
        e.branch(column + e.i64(PAIRS) <= e.i64(columns), whole, last)

    def _finish(self, panel: Expr, sums: tuple[Buffer, Expr], top: Expr, count: Expr) -> None:
        """Emit the results of rows of a panel."""
        e = self.e
        column = e.share(panel * e.i64(PAIRS))

        def write(width: int) -> None:
            self.finisher.block(sums, lambda row: (top + row, None), count, column, width)

        self._either_width(column, write)
