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

# Of rows whose sums wait for the next part of the depth, and of panels that they are summed for:
# 256 KB of sums, 256 KB of rows in bfloat16, and 32 KB of weights.
_ROWS, _PANELS = 256, 8
_DEPTH = PART_STEPS * STEP
# Between columns: those of a power of two would lie in the same places of the cache.
_STRIDE = _DEPTH + PAIRS


class Bf16Writer(Writer):
    """A kernel that rounds weights and rows to bfloat16."""

    def large_m(self) -> None:
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
            self.finish(panel, square, e.share(top + begin), left)
