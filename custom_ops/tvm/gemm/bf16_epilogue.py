"""From sums on the stack to results in memory: the epilogue of bfloat16 products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.region.dtypes import load, store_value

from ...forms.finish import Finish
from ..tile.emitter import parts
from ..tile.registers import VECTOR
from .bf16_emitter import PAIRS, Bf16Emitter

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr


@dataclass(frozen=True)
class Finisher:
    """Writes blocks of finished results.

    Args:
        e: The emitter that writes the statements.
        finish: What is done.
        buffers: The region's tensors.
        outputs: The number of the first output among them.
        columns: Of a row of the results.
    """

    e: Bf16Emitter
    finish: Finish
    buffers: Sequence[Buffer]
    outputs: int
    columns: int

    def block(
        self,
        block: tuple[Buffer, Expr],
        row_of: Callable[[Expr], tuple[Expr, Expr | None]],
        rows: Expr,
        column: Expr,
        width: int,
    ) -> None:
        """Finish a block of sums, `PAIRS` of them a row.

        Args:
            block: The sums, and the element that they begin at.
            row_of: Which row of the results a row of the block is, and whether it is one; None if
                each is.
            rows: Number of rows.
            column: Of the results, that its first one is.
            width: How many columns of the block there are.
        """
        e, (sums, begin) = self.e, block
        with e.loop(rows) as row:
            target, is_result = row_of(row)
            source = e.share(begin + row * e.i64(PAIRS))
            sink = e.share(target * e.i64(self.columns) + column)
            with e.block() as finished:
                self._row(sums, (source, sink, column), width)
            e.when(e.constant(1, "bool") if is_result is None else is_result, finished)

    def _row(self, sums: Buffer, position: tuple[Expr, Expr, Expr], width: int) -> None:
        e, (source, sink, column) = self.e, position
        if width == PAIRS:
            self._whole_row(sums, source, sink, column)
            return
        for start in range(0, width, VECTOR):
            for offset, count in parts(min(VECTOR, width - start)):
                at = e.i64(start + offset)
                self._part(sums, (source + at, sink + at, column + at), count)

    def _values(self, sums: Buffer, position: tuple[Expr, Expr, Expr], lane: Expr) -> list[Expr]:
        """Return the results of a lane; `position`: in the sums, in the results, the column."""
        e, finish = self.e, self.finish
        source, sink, column = position
        extras = []
        for number, of_columns in zip(finish.epilogue.extras, finish.of_columns, strict=True):
            raw = self.buffers[number][(column if of_columns else sink) + lane]
            extras.append(load(e, raw, e.dtypes[number]))
        kept = {value.index for value in finish.results}
        values = finish.epilogue.values(e, sums[source + lane], extras, kept)
        return [values[value.index] for value in finish.results]

    def _part(self, sums: Buffer, position: tuple[Expr, Expr, Expr], count: int) -> None:
        e = self.e
        source, sink, column = (e.share(each) for each in position)
        with e.lanes(count) as lane:
            results = self._values(sums, (source, sink, column), lane)
            for number, value in enumerate(results, self.outputs):
                stored = store_value(e, value, e.dtypes[number])
                e.store(self.buffers[number], stored, sink + lane)

    def _whole_row(self, sums: Buffer, source: Expr, sink: Expr, column: Expr) -> None:
        """Finish two vectors, which are rounded together."""
        e = self.e
        numbers = range(self.outputs, self.outputs + len(self.finish.results))
        narrow = {
            number: [e.scratch(), e.scratch()]
            for number in numbers
            if e.dtypes[number] == "bfloat16"
        }
        for half in range(2):
            at = e.i64(half * VECTOR)
            with e.vector(VECTOR) as lane:
                position = (source + at, sink + at, column + at)
                for number, value in zip(numbers, self._values(sums, position, lane), strict=True):
                    if number in narrow:
                        e.store(narrow[number][half], value, lane)
                    else:
                        e.store(self.buffers[number], value, sink + at + lane)
        for number, halves in narrow.items():
            low, high = (e.row(half, 0, VECTOR) for half in halves)
            e.put(self.buffers[number], sink, e.rounded_pair(low, high), PAIRS)
