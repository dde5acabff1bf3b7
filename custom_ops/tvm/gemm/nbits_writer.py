"""Writes the kernel of a product with weights in 4 or 8 bits.

A few rows are multiplied while the weights come from memory, which bounds them: as they lie, by
rows in int8, or in float32 where the accuracy level wants more. Many rows are multiplied by panels
of weights that stay in the cache, which each of the two writers does in its own way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ortkit.kernels.sizes import product

from ...forms.gemm_nbits import INT8_LEVEL, NBitsForm
from .bf16_emitter import PAIRS, TILE
from .bf16_epilogue import Finisher
from .nbits_emitter import NBitsEmitter
from .nbits_int8 import dot_column_int8, quantize_row, quantized_rows_for
from .nbits_weights import Blocks, copy_row, dot_column, rows_for

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

#: Rows that are multiplied by weights as they lie, at most.
SMALL_M = 4


class Writer(ABC):
    """One kernel in the making."""

    def __init__(self, of: NBitsForm, symbol: str, level: str) -> None:
        self.of = of
        self.e = e = NBitsEmitter(symbol, processor=level)
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
            self.large_m()
        e.branch(self.rows <= e.i64(SMALL_M), few, many)
        return e.function()

    @abstractmethod
    def large_m(self) -> None:
        """Emit A W for many rows."""

    def _small_m(self) -> None:
        """Emit A W, for 1, 2 or 4 rows at once; the last of three rows is taken twice."""
        e = self.e
        prepare, dot = self._few_rows()
        sums = e.local(SMALL_M * PAIRS, "float32")
        for count in (1, 2, SMALL_M):
            with e.block() as some:
                for number in range(count):
                    row = e.minimum(e.i64(number), self.rows - e.i64(1))
                    begin = e.share(row * e.i64(self.of.depth))
                    prepare((self.buffers[self.of.a], begin), number)
                self._together(partial(dot, count), sums)
            is_least = e.both(self.rows > e.i64(count // 2), self.rows <= e.i64(count))
            e.when(is_least, some)

    def _few_rows(
        self,
    ) -> tuple[Callable[[tuple[Buffer, Expr], int], None], Callable[[int, Expr], Sequence[Expr]]]:
        """Return what makes a row ready, and what multiplies some rows by a column."""
        e, of = self.e, self.blocks
        if self.of.level == INT8_LEVEL:
            bytes_ = quantized_rows_for(e, of, SMALL_M)
            return (
                lambda source, number: quantize_row(e, of, source, bytes_, number),
                lambda count, column: dot_column_int8(e, of, bytes_, count, column),
            )
        rows = rows_for(e, of, SMALL_M)
        return (
            lambda source, number: copy_row(e, of, source, rows, number),
            lambda count, column: dot_column(e, of, rows, count, column),
        )

    def _together(self, dot: Callable[[Expr], Sequence[Expr]], sums: Buffer) -> None:
        """Emit the products of all rows with the panels."""
        e = self.e
        with e.loop(self.end - self.begin) as index:
            panel = e.share(self.begin + index)
            begin = e.share(panel * e.i64(PAIRS))
            left = e.share(e.minimum(e.i64(PAIRS), e.i64(self.of.columns) - begin))
            with e.loop(left) as column:
                for number, total in enumerate(dot(e.share(begin + column))):
                    whole = e.scratch()
                    e.store_row(whole, total, 0, TILE)
                    e.store(sums, e.sum_of(whole), e.i64(number * PAIRS) + column)
            self.finish(panel, (sums, e.i64(0)), e.i64(0), self.rows)

    def either_width(self, column: Expr, write: Callable[[int], None]) -> None:
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

    def finish(self, panel: Expr, sums: tuple[Buffer, Expr], top: Expr, count: Expr) -> None:
        """Emit the results of rows of a panel."""
        e = self.e
        column = e.share(panel * e.i64(PAIRS))

        def write(width: int) -> None:
            self.finisher.block(sums, lambda row: (top + row, None), count, column, width)

        self.either_width(column, write)
