"""Tiles of int8 products: rows of bytes by panels of columns, their sums in registers.

A row is some lines of bytes, at the same distances in all rows: one line of a matrix, a line of an
image for each line of a filter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ortkit.kernels.layouts.int8_panels import GROUP, WIDTH

from ..tile.program import Panels
from ..tile.registers import VECTOR
from .int8_finish import Finisher, OutputVector
from .nbits_emitter import BYTES

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ...forms.gemm_int8 import Int8Form
    from .int8_emitter import Int8Emitter

# Rows of tiles, the largest first. AVX-512 has 16 accumulators, two vectors wide; AVX2 has four,
# one vector of 16 columns wide: 8 registers. Of three rows LLVM (TVM 0.27) joins the sums to wider
# vectors, and takes these apart: 5 times as long as two tiles (2026-11-28). Five and six rows are
# no faster on Zen 4, which starts about three vector operations a cycle whatever the tile.
_WIDE_ROWS, _ROWS = (8, 4, 2, 1), (4, 2, 1)


@dataclass(frozen=True)
class Depth:
    """What a row consists of.

    Args:
        run: Numbers of each line.
        lines: How many lie below each other, and how many side by side.
        pitches: How far these lie apart.
        is_padded: Whether up to a group may be read behind each, whatever lies there.
    """

    run: int
    lines: tuple[int, int] = (1, 1)
    pitches: tuple[int, int] = (0, 0)
    is_padded: bool = False

    @property
    def groups(self) -> int:
        """Groups of four neighbours in a line of weights."""
        return -(-self.run // GROUP)

    @property
    def all_groups(self) -> int:
        """Those of all lines."""
        return prod(self.lines) * self.groups


@dataclass(frozen=True)
class Opened:
    """A panel of columns whose weights are at hand.

    Args:
        column: Its first.
        start: Where its weights begin.
        vectors: How many it has.
        lanes: Columns of its last vector.
    """

    column: Expr
    start: Expr
    vectors: int
    lanes: int


class Int8Tiles:
    """Emits tiles.

    Args:
        e: The emitter that writes the statements.
        of: What is computed.
        buffers: The region's tensors.
        panels: The result's columns.
        depth: What a row consists of.
    """

    def __init__(
        self, e: Int8Emitter, of: Int8Form, buffers: list[Buffer], panels: Panels, depth: Depth
    ) -> None:
        self.e, self.of, self.buffers = e, of, buffers
        self.panels, self.depth = panels, depth
        is_wide = e.has_dot4 and e.has_avx512
        self.heights = _WIDE_ROWS if is_wide else _ROWS
        # Neighbours along K that one instruction multiplies.
        self.step_size = GROUP if e.has_dot4 else 2
        self.together = panels.vectors if is_wide else 1
        if not e.has_vnni:
            # A copy of a panel: in 16 bits, or cut to 7 bits.
            self.copied = e.aligned(self._vector_size * panels.vectors, self.row_dtype)
        self.finisher = Finisher(e, of, buffers, panels.vectors)
        self.opened = e.local(1, "int64")
        e.store(self.opened, e.i64(-1), e.i64(0))

    @property
    def row_dtype(self) -> str:
        """The type that rows are read in."""
        return "uint8" if self.e.has_dot4 else "uint16"

    @property
    def _vector_size(self) -> int:
        """Numbers of a vector of 16 columns."""
        return self.depth.all_groups * GROUP * VECTOR

    def each_panel(self, panel: Expr, emit: Callable[[Opened], None]) -> None:
        """Emit work on a panel, given its number; it is opened unless it was the last one."""
        e = self.e

        def some(vectors: int, lanes: int) -> None:
            column = e.share(panel * e.i64(WIDTH))
            start = e.share(panel * e.i64(self.depth.all_groups * WIDTH * GROUP))
            opened = Opened(column, start, vectors, lanes)
            with e.block() as new:
                self._open(opened)
                e.store(self.opened, panel, e.i64(0))
            e.when(e.not_equal(self.opened[e.i64(0)], panel), new)
            emit(opened)

        self.panels.each(e, panel, some)

    def each_tile(
        self, count: Expr, emit: Callable[[Expr, int], None], known: Collection[int] = ()
    ) -> None:
        """Emit tiles of `count` rows, given the first row of each and its height.

        Args:
            count: How many rows.
            emit: Emits one tile.
            known: All that `count` may be, if that is known.
        """
        e, done = self.e, self.e.i64(0)
        for height in self._heights(known):
            number = e.share(e.divide_down(count - done, height))
            with e.loop(number) as index:
                emit(e.share(done + index * e.i64(height)), height)
            done = e.share(done + number * e.i64(height))

    def _heights(self, known: Collection[int]) -> list[int]:
        """Return the heights of tiles that make up some counts of rows, or any."""
        if not known:
            return list(self.heights)
        used, left = list[int](), set(known)
        for height in self.heights:
            if any(count >= height for count in left):
                used.append(height)
            left = {count % height for count in left}
        return used

    def tile(self, rows: tuple[Buffer, list[Expr]], sinks: list[Expr], panel: Opened) -> None:
        """Emit a tile: its sums, then its results.

        Args:
            rows: What has them in `row_dtype`, and where each begins.
            sinks: Where in the result the panel's columns of each row begin.
            panel: The columns.
        """
        e, tops = self.e, rows[1]
        for first in range(0, panel.vectors, self.together):
            vectors = range(first, min(panel.vectors, first + self.together))
            totals = [[e.begin_sum(self.finisher.begin(v)) for v in vectors] for _ in tops]

            def line(
                away: Expr, group: Expr, totals: list[list[Buffer]] = totals,
                vectors: range = vectors,
            ) -> None:  # fmt: skip
                self._add_line(rows, totals, vectors, panel, (away, group))

            self._each_line(line)
            for own, sink in zip(totals, sinks, strict=True):
                for vector, total in zip(vectors, own, strict=True):
                    width = VECTOR if vector < panel.vectors - 1 else panel.lanes
                    at_vector = OutputVector(e.share(sink + e.i64(vector * VECTOR)), width, vector)
                    self.finisher.write(e.sums(total), at_vector)

    def _each_line(self, emit: Callable[[Expr, Expr], None]) -> None:
        """Emit lines, given how far each lies from a row's first, and its first group."""
        e, of = self.e, self.depth
        (down, across), (below, beside) = of.lines, of.pitches
        if down * across == 1:
            emit(e.i64(0), e.i64(0))
            return
        with e.loop(e.i64(down)) as line:
            away, group = e.share(line * e.i64(below)), e.share(line * e.i64(across * of.groups))
            if across == 1:
                emit(away, group)
                return
            with e.loop(e.i64(across)) as column:
                to = e.share(away + column * e.i64(beside))
                emit(to, e.share(group + column * e.i64(of.groups)))

    def _open(self, panel: Opened) -> None:
        """Emit what is made of a panel's weights once, and what is read once for all rows."""
        e = self.e
        sums = [e.begin_sum() for _ in range(panel.vectors)]
        if self.of.adds_up_weights or not e.has_vnni:
            with e.loop(e.i64(self.depth.all_groups)) as group:
                for vector, total in enumerate(sums):
                    at = panel.start + group * e.i64(WIDTH * GROUP) + e.i64(vector * BYTES)
                    weights = e.share_bytes(e.sixty_four(self.buffers[self.of.weight], at))
                    self._open_group(group, vector, total, weights)
        self.finisher.open(panel.column, sums, panel.lanes)

    def _open_group(self, group: Expr, vector: int, total: Buffer, weights: Expr) -> None:
        """Emit the sums of four weights of 16 columns and, without VNNI, a copy of these."""
        e = self.e
        if not e.has_dot4:
            for number, pair in enumerate(e.widened(weights)):
                pair = e.share_row(pair, 2 * VECTOR, "uint16")
                if self.of.adds_up_weights:
                    e.add_pairs(total, e.constant(0x00010001, "uint32"), pair)
                to = self._copy_at(group * e.i64(2) + e.i64(number), vector)
                e.put(self.copied[0], to, pair, 2 * VECTOR)
            return
        if not e.has_vnni:
            weights = e.share_bytes(e.narrow(weights))
            e.put_bytes(self.copied[0], self._copy_at(group, vector), weights)
        if self.of.adds_up_weights:
            e.add_fours(total, e.constant(0x01010101, "uint32"), weights)

    def _copy_at(self, step: Expr, vector: int) -> Expr:
        """Return where the weights of 16 columns for a step along K lie in the panel's copy."""
        e = self.e
        first = self.copied[1] + e.i64(vector * self._vector_size)
        return first + step * e.i64(self.step_size * VECTOR)

    def _add_line(
        self,
        rows: tuple[Buffer, list[Expr]],
        totals: list[list[Buffer]],
        vectors: range,
        panel: Opened,
        line: tuple[Expr, Expr],
    ) -> None:
        """Emit the products of a line of each row, added to sums.

        Args:
            rows: What has them, and where each begins.
            totals: The sums of each row, one for each vector.
            vectors: Of the panel.
            panel: The columns.
            line: How far it lies from a row's first, and its first group.
        """
        e, size, (x, tops) = self.e, self.step_size, rows
        add = e.add_fours if e.has_dot4 else e.add_pairs
        if prod(self.depth.lines) > 1:
            tops = [e.share(top + line[0]) for top in tops]
        first = e.share(line[1] * e.i64(GROUP // size))

        def step(number: Expr, count: int) -> None:
            weights = [self._weights(panel, first + number, vector) for vector in vectors]
            at = e.share(number * e.i64(size))
            for top, own in zip(tops, totals, strict=True):
                value = e.share(self._neighbours(x, top + at, count))
                for total, weight in zip(own, weights, strict=True):
                    add(total, value, weight)

        # What lies behind rows in 16 bits is 0, as it is in a copy of lines.
        is_padded = self.depth.is_padded or not e.has_dot4
        whole, left = divmod(self.depth.run, size)
        if left and is_padded:
            whole, left = whole + 1, 0
        with e.loop(e.i64(whole)) as number:
            step(number, size)
        if left:
            step(e.i64(whole), left)

    def _weights(self, panel: Opened, step: Expr, vector: int) -> Expr:
        """Return those of 16 columns for a step along K: 64 bytes, or 32 numbers of 16 bits."""
        e = self.e
        if e.has_vnni:
            at = panel.start + step * e.i64(WIDTH * GROUP) + e.i64(vector * BYTES)
            return e.share_bytes(e.sixty_four(self.buffers[self.of.weight], at))
        at = self._copy_at(step, vector)
        if e.has_dot4:
            return e.share_bytes(e.sixty_four(self.copied[0], at))
        return e.share_row(e.part(self.copied[0], at, 2 * VECTOR), 2 * VECTOR, "uint16")

    def _neighbours(self, x: Buffer, at: Expr, count: int) -> Expr:
        """Return neighbours along K as one uint32; those beyond `count` are 0, and not read."""
        e = self.e
        if count == self.step_size:
            return e.tir.reinterpret("uint32", e.part(x, at, count))
        result = e.cast(x[at], "uint32")
        for number in range(1, count):
            shifted = e.cast(x[at + e.i64(number)], "uint32") << e.constant(8 * number, "uint32")
            result = result | shifted
        return result
