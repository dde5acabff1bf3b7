"""Writes the kernel of a bfloat16 product: pieces of work, copies of rows, blocks, results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.bf16 import STRIP

from .bf16_blocks import Operands, dot_block, shape_tiles, tile_block
from .bf16_copy import copy_rows
from .bf16_emitter import PAIRS, TILE, Bf16Emitter
from .bf16_finish import Finisher

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr

    from .bf16_product import Bf16Product

# Rows of blocks of dot products, the largest first: two vectors of sums for each, and three more
# registers of the 32.
_DOT_ROWS = (12, 4, 1)
# Between copied rows: without it rows of a power of two would lie in the same places of the cache.
_GAP = PAIRS


@dataclass(frozen=True)
class _Piece:
    """The rows of a slice of work in one block of rows and one panel of columns.

    Args:
        block: The number of the block of rows.
        panel: The number of the panel.
        above: The rows before the block.
        high: The rows of the block.
        start: The first row of the piece in the block.
        stop: The one after its last.
    """

    block: Expr
    panel: Expr
    above: Expr
    high: Expr
    start: Expr
    stop: Expr


class Writer:
    """One kernel in the making."""

    def __init__(self, of: Bf16Product, symbol: str, *, has_tiles: bool) -> None:
        self.of, self.form, self.has_tiles = of, of.form, has_tiles
        self.e = e = Bf16Emitter(symbol)
        self.buffers, self.begin, self.end = e.parameters(self.form.signature)
        inputs = len(self.form.signature.inputs)
        self.finisher = Finisher(e, self.form.finish, self.buffers, inputs, self.form.columns)
        self.rows = e.share(e.extent(self.form.rows))
        self.sums = e.scratch((PAIRS if has_tiles else _DOT_ROWS[0]) * PAIRS)
        # What the tiles are set for, and the block of rows that is copied; neither yet.
        self.shaped, self.copied = e.local(1, "int64"), e.local(1, "int64")
        self.copy = e.local(of.block_rows * self._stride, "uint16") if of.is_copied else None

    @property
    def _stride(self) -> int:
        """Between rows of A, in elements."""
        return self.of.depth + (_GAP if self.of.is_copied else 0)

    def function(self) -> Expr:
        """Return the function that computes the units begin .. end - 1."""
        e = self.e
        for state in (self.shaped, self.copied):
            e.store(state, e.i64(-1), e.i64(0))
        with self._pieces() as piece:
            if self.copy is not None:
                self._copy(piece)
            width = self.form.columns - PAIRS * (self.of.panels - 1)
            if width == PAIRS or self.of.panels == 1:
                self._panel(piece, width)
            else:
                with e.block() as whole:
                    self._panel(piece, PAIRS)
                with e.block() as last:
                    self._panel(piece, width)
                e.branch(piece.panel < e.i64(self.of.panels - 1), whole, last)
        if self.has_tiles:
            e.release_tiles()
        return e.function()

    @contextmanager
    def _pieces(self) -> Iterator[_Piece]:
        """Emit a loop over the pieces of the slice.

        Units count the rows of a panel, then panels, then blocks of rows. The last block may have
        fewer rows.
        """
        e, height, panels = self.e, self.of.block_rows, self.of.panels
        blocks = e.share(e.divide_down(self.rows, height))
        left = e.share(self.rows - blocks * e.i64(height))
        pieces = e.share(blocks * e.i64(panels))  # of whole blocks
        units = e.share(pieces * e.i64(height))

        def piece_of(unit: Expr) -> Expr:
            late = pieces + e.divide_down(unit - units, e.share(e.tir.max(left, e.i64(1))))
            return e.share(e.select(unit < units, e.divide_down(unit, height), late))

        first = piece_of(self.begin)
        with e.loop(piece_of(self.end - e.i64(1)) - first + e.i64(1)) as index:
            number = e.share(first + index)
            is_whole = e.share(number < pieces)

            def either(whole: Expr, late: Expr) -> Expr:
                return e.share(e.select(is_whole, whole, late))

            block = either(e.divide_down(number, panels), blocks)
            panel = either(number - block * e.i64(panels), number - pieces)
            high = either(e.i64(height), left)
            base = e.share(block * e.i64(height * panels) + panel * high)
            start = e.share(e.tir.max(self.begin - base, e.i64(0)))
            stop = e.share(e.minimum(self.end - base, high))
            yield _Piece(block, panel, e.share(block * e.i64(height)), high, start, stop)

    def _copy(self, piece: _Piece) -> None:
        """Emit the copy of a block of rows, if it is not the one that is there."""
        e = self.e
        assert self.copy is not None
        with e.block() as new:
            form = self.form
            source = self.buffers[form.a], e.share(piece.above * e.i64(form.depth))
            copy_rows(e, source, (self.copy, self._stride), piece.high, form.depth)
            e.store(self.copied, piece.block, e.i64(0))
        e.when(e.not_equal(self.copied[e.i64(0)], piece.block), new)

    def _panel(self, piece: _Piece, width: int) -> None:
        e = self.e
        count = e.share(piece.stop - piece.start)
        if self.has_tiles:
            with e.loop(e.divide_up(count, PAIRS)) as index:
                first = e.share(piece.start + index * e.i64(PAIRS))
                self._tiles(piece, first, width)
            return
        done = piece.start
        for size in _DOT_ROWS:
            number = e.share(e.divide_down(piece.stop - done, size))
            with e.loop(number) as index:
                first = e.share(done + index * e.i64(size))
                shape = size, -(-width // STRIP)
                dot_block(e, self._operands(), self._at(piece, first), shape, self.sums)
                self._finish(piece, first, e.i64(size), width)
            done = e.share(done + number * e.i64(size))

    def _tiles(self, piece: _Piece, first: Expr, width: int) -> None:
        """Emit up to 32 rows from `first` on."""
        e = self.e
        rows = e.share(e.minimum(e.i64(PAIRS), piece.stop - first))
        with e.block() as other:
            upper = e.share(e.minimum(rows, e.i64(TILE)))
            shape_tiles(e, upper, e.share(e.tir.max(rows - e.i64(TILE), e.i64(1))))
            e.store(self.shaped, rows, e.i64(0))
        e.when(e.not_equal(self.shaped[e.i64(0)], rows), other)
        branches = []
        for tiles in (2, 1):
            with e.block() as branch:
                shape = tiles, -(-width // STRIP)
                tile_block(e, self._operands(), self._at(piece, first), shape, self.sums)
            branches.append(branch)
        e.branch(rows > e.i64(TILE), *branches)
        self._finish(piece, first, rows, width)

    def _operands(self) -> Operands:
        a = self.buffers[self.form.a] if self.copy is None else self.copy
        return Operands(a, self._stride, self.buffers[self.form.weight], self.of.depth)

    def _at(self, piece: _Piece, first: Expr) -> tuple[Expr, Expr]:
        """Return the element of A and the strip of the weight that a block begins at."""
        e = self.e
        row = first if self.copy is not None else piece.above + first
        strips = PAIRS // STRIP
        return e.share(row * e.i64(self._stride)), e.share(piece.panel * e.i64(strips))

    def _finish(self, piece: _Piece, first: Expr, rows: Expr, width: int) -> None:
        e = self.e
        column = e.share(piece.panel * e.i64(PAIRS))
        self.finisher.block(self.sums, piece.above + first, rows, column, width)
