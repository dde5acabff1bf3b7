"""Writes the kernel of a bfloat16 product: pieces of work, copies of rows, blocks, results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ortkit.kernels.layouts.bf16_blocks import STRIP
from ortkit.kernels.sizes import product

from .bf16_blocks import Operands, Steps, dot_block, shape_tiles, tile_block
from .bf16_emitter import PAIRS, TILE, Bf16Emitter
from .bf16_epilogue import Finisher
from .bf16_im2col import copy_patches
from .bf16_pack_a import Gate, copy_rows
from .bf16_plan import Bf16Plan

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

# Rows of blocks of dot products, the largest first: two vectors of sums for each. Of 6, 10 or 12
# rows LLVM takes the sums apart into single numbers.
_DOT_ROWS = (8, 4, 1)
# Of more parts of the depth the sums come and go more often than the panel is worth; so they do
# where the rows are near because they were just copied.
_MOST_DEPTH_IN_PARTS = 1536
# Rows whose sums wait for the next part of the depth, at most: 32 KB.
_GROUP_ROWS = 256
# Between copied rows: without it rows of a power of two would lie in the same places of the cache.
_GAP = PAIRS


@dataclass(frozen=True)
class Piece:
    """The rows of a slice of work in one block of rows and one group of panels of columns.

    Args:
        block: The number of the block of rows.
        panel: The number of a panel, at first that of the group's first one.
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

    # Steps along the depth for which a panel of the weight stays in the first level of cache.
    most_steps = 8

    def __init__(self, of: Bf16Plan, symbol: str, *, has_tiles: bool) -> None:
        self.of, self.form, self.has_tiles = of, of.form, has_tiles
        self.e = e = Bf16Emitter(symbol)
        self.buffers, self.begin, self.end = e.parameters(self.form.signature)
        inputs = len(self.form.signature.inputs)
        self.finisher = Finisher(e, self.form.finish, self.buffers, inputs, self.form.columns)
        self.rows = e.share(e.extent(product(of.unit_axes)))
        height = _GROUP_ROWS if self._parts > 1 else PAIRS
        height = height if has_tiles else _DOT_ROWS[0]
        self.sums, self.origin = e.aligned(height * PAIRS, "float32")
        # What the tiles are set for, and the block of rows that is copied; neither yet.
        self.shaped, self.copied = e.local(1, "int64"), e.local(1, "int64")
        self.copy: tuple[Buffer, Expr] | None = None
        if of.is_copied:
            self.copy = e.aligned(self._copy_size, "uint16")

    @property
    def _stride(self) -> int:
        """Between rows of A, in elements."""
        return self.of.depth + (_GAP if self.of.is_copied else 0)

    @property
    def _copy_size(self) -> int:
        """Of the copied rows, in elements."""
        return self.of.block_rows * self._stride

    @property
    def _parts(self) -> int:
        """How many parts of the depth are taken one after the other."""
        if self.of.depth > _MOST_DEPTH_IN_PARTS or self.of.is_copied:
            return 1
        return -(-self.of.depth // (PAIRS * self.most_steps))

    def function(self) -> Expr:
        """Return the function that computes the units begin .. end - 1."""
        e = self.e
        for state in (self.shaped, self.copied):
            e.store(state, e.i64(-1), e.i64(0))
        with self._pieces() as piece:
            if self.copy is not None:
                self._copy(piece)
            if self.of.span == 1:
                self._any_panel(piece)
            else:
                with e.loop(e.i64(self.of.span)) as index:
                    self._any_panel(replace(piece, panel=e.share(piece.panel + index)))
        if self.has_tiles:
            e.release_tiles()
        return e.function()

    @contextmanager
    def _pieces(self) -> Iterator[Piece]:
        """Emit a loop over the pieces of the slice.

        Units count the rows of a group of panels, then groups, then blocks of rows. The last block
        may have fewer rows.
        """
        e, height, panels = self.e, self.of.block_rows, self.of.groups
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
            group = either(number - block * e.i64(panels), number - pieces)
            high = either(e.i64(height), left)
            base = e.share(block * e.i64(height * panels) + group * high)
            panel = e.share(group * e.i64(self.of.span))
            start = e.share(e.tir.max(self.begin - base, e.i64(0)))
            stop = e.share(e.minimum(self.end - base, high))
            yield Piece(block, panel, e.share(block * e.i64(height)), high, start, stop)

    def _copy(self, piece: Piece) -> None:
        """Emit the copy of the rows that are read, if they are not those that are there."""
        e = self.e
        if self.of.groups == 1:
            self._copy_rows(piece, piece.start, piece.stop)
            return
        with e.block() as new:
            self._copy_rows(piece, e.i64(0), piece.high)
            e.store(self.copied, piece.block, e.i64(0))
        e.when(e.not_equal(self.copied[e.i64(0)], piece.block), new)

    def _copy_rows(self, piece: Piece, start: Expr, stop: Expr) -> None:
        e, form = self.e, self.form
        assert self.copy is not None
        buffer, origin = self.copy
        source, first = self.buffers[form.a], e.share(piece.above + start)
        sink = buffer, e.share(origin + start * e.i64(self._stride)), self._stride
        count = e.share(stop - start)
        if form.patches is None:
            begin = e.share(first * e.i64(form.depth))
            copy_rows(e, (source, begin), sink, count, form.depth, self._gate(first))
        else:
            copy_patches(e, source, sink, (first, count), form.patches)

    def _gate(self, first: Expr) -> Gate | None:
        """Return the factors of the rows from `first` on, which are pixels."""
        e, form = self.e, self.form
        if form.gate is None:
            return None
        pixels = e.share(e.extent(product(form.leading[1:])))

        def start(row: Expr) -> Expr:
            return e.divide_down(first + row, pixels) * e.i64(form.depth)

        return Gate(self.buffers[form.gate], start)

    def _any_panel(self, piece: Piece) -> None:
        """Emit a panel of whichever width: the last one may be narrower."""
        panels = self.of.panels
        width = self.form.columns - PAIRS * (panels - 1)
        self.e.peel_last(
            piece.panel, panels, PAIRS, width, lambda number: self._panel(piece, number)
        )

    def _panel(self, piece: Piece, width: int) -> None:
        if self.has_tiles:
            self._tile_panel(piece, width)
        else:
            self._dot_panel(piece, width)

    def _dot_panel(self, piece: Piece, width: int) -> None:
        e, done = self.e, piece.start
        for size in _DOT_ROWS:
            number = e.share(e.divide_down(piece.stop - done, size))
            with e.loop(number) as index:
                first = e.share(done + index * e.i64(size))
                shape = size, -(-width // STRIP)
                sums = self.sums, self.origin
                dot_block(e, self._operands(), self._at(piece, first), shape, sums)
                self._finish(piece, (first, self.origin), e.i64(size), width)
            done = e.share(done + number * e.i64(size))

    def _tile_panel(self, piece: Piece, width: int) -> None:
        """Emit groups of rows, and in them each part of the depth for all rows."""
        e = self.e
        if self._parts == 1:
            count = e.share(piece.stop - piece.start)
            with e.loop(e.divide_up(count, PAIRS)) as index:
                zero = e.i64(0)
                steps = Steps(zero, e.i64(self.of.depth // PAIRS), None, index, zero)
                first = e.share(piece.start + index * e.i64(PAIRS))
                rows = self._tiles(piece, first, width, steps, self.origin)
                self._finish(piece, (first, self.origin), rows, width)
            return
        with e.loop(e.divide_up(piece.stop - piece.start, _GROUP_ROWS)) as group:
            top = e.share(piece.start + group * e.i64(_GROUP_ROWS))
            count = e.share(e.minimum(piece.stop - top, e.i64(_GROUP_ROWS)))
            with e.loop(e.i64(self._parts)) as part:
                begin, length, left = self._part(part)
                with e.loop(e.divide_up(count, PAIRS)) as index:
                    steps = Steps(begin, length, e.equal(part, e.i64(0)), index, left)
                    within = e.share(index * e.i64(PAIRS))
                    first = e.share(top + within)
                    sums = e.share(self.origin + within * e.i64(PAIRS))
                    rows = self._tiles(piece, first, width, steps, sums)
                    with e.block() as finish:
                        self._finish(piece, (first, sums), rows, width)
                    e.when(e.equal(part, e.i64(self._parts - 1)), finish)

    def _part(self, part: Expr) -> tuple[Expr, Expr, Expr]:
        """Return where a part of the depth begins, its steps, and where it lies in rows of A."""
        e, total = self.e, self.of.depth // PAIRS
        most = -(-total // self._parts)
        begin = e.share(part * e.i64(most))
        length = e.share(e.minimum(e.i64(most), e.i64(total) - begin))
        return begin, length, e.share(begin * e.i64(PAIRS))

    def _tiles(self, piece: Piece, first: Expr, width: int, steps: Steps, sums: Expr) -> Expr:
        """Emit the sums of up to 32 rows from `first` on; return how many rows."""
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
                shape, at = (tiles, -(-width // STRIP)), self._at(piece, first)
                tile_block(e, self._operands(), at, shape, steps, (self.sums, sums))
            branches.append(branch)
        e.branch(rows > e.i64(TILE), *branches)
        return rows

    def _operands(self) -> Operands:
        a = self.buffers[self.form.a] if self.copy is None else self.copy[0]
        return Operands(a, self._stride, self.buffers[self.form.weight], self.of.depth)

    def _at(self, piece: Piece, first: Expr) -> tuple[Expr, Expr]:
        """Return the element of A and the strip of the weight that a block begins at."""
        e = self.e
        strip = e.share(piece.panel * e.i64(PAIRS // STRIP))
        if self.copy is None:
            return e.share((piece.above + first) * e.i64(self._stride)), strip
        return e.share(self.copy[1] + first * e.i64(self._stride)), strip

    def _finish(self, piece: Piece, at: tuple[Expr, Expr], rows: Expr, width: int) -> None:
        """Emit the results of rows; `at`: the first one, and the element that its sums are at."""
        e, (first, sums) = self.e, at
        column = e.share(piece.panel * e.i64(PAIRS))

        def row_of(row: Expr) -> tuple[Expr, Expr | None]:
            return self._result_row(piece, e.share(first + row))

        self.finisher.block((self.sums, sums), row_of, rows, column, width)

    def _result_row(self, piece: Piece, row: Expr) -> tuple[Expr, Expr | None]:
        """Return which row of the results a row of a piece is, and whether it is one."""
        return piece.above + row, None
