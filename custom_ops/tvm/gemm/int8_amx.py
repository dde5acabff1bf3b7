"""Blocks of int8 products in the tiles of AMX: sums of up to 32 rows by 32 columns, exact.

A strip is up to 16 rows of a constant stride: the rows of one tile. Two strips are multiplied
together by a panel of weights, whose layout in memory is that of tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ortkit.kernels.layouts.int8_panels import GROUP, WIDTH

from ..tile.registers import VECTOR
from .bf16_emitter import TILE
from .int8_finish import OutputVector
from .int8_tiles import Depth, Int8Tiles, Opened
from .nbits_emitter import BYTES

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ...forms.gemm_int8 import Int8Form
    from ..tile.program import Panels
    from .int8_emitter import Int8Emitter

#: Rows of a block.
ROWS = 2 * TILE
# The stride of a panel's groups, in bytes.
_PITCH = WIDTH * GROUP
# Steps of equal size may be more than the fewest by this factor. A multiply takes as long
# whatever its depth is: 7.0 ns of 64 bytes, 6.3 of 16 (Emerald Rapids, 2026-11-28).
_MOST_STEPS = 1.25
# Weights of fewer bytes are not fetched ahead. In a model others are in the third level of cache
# or in memory, even where they would fit the second: bert's 36 of 590 KB took 137 us each instead
# of 104 for one that had just been read (Emerald Rapids, 2026-11-29).
_MIN_FETCHED_BYTES = 64 * 1024
# Blocks that share the fetch of the next panel: at most, and where their number is not known.
_MAX_PARTS, _USUAL_PARTS = 8, 4
# Tiles: sums (strip, column) 0 to 3, then two strips, then two of weights.
_A, _B = 4, 6
# Of a single strip with a shorter last step: sums, the strip, weights, both of the last step.
_LAST_A, _LAST_B = 5, 2

#: Where a row of a strip is written, given its number: where its columns begin in the result, and
#: whether it is one; None if each is.
Sink: TypeAlias = "Callable[[Expr], tuple[Expr, Expr | None]]"


@dataclass(frozen=True)
class Steps:
    """How a line of weights is cut along K.

    Args:
        size: Groups of a step.
        count: Number of steps.
        last: Groups of a shorter step after these; 0 if there is none.
    """

    size: int
    count: int
    last: int = 0


def steps_of(groups: int) -> Steps:
    """Return steps of equal size where these are not many more; else whole tiles and a rest."""
    fewest = -(-groups // TILE)
    for count in range(fewest, int(fewest * _MOST_STEPS) + 1):
        if groups % count == 0:
            return Steps(groups // count, count)
    return Steps(TILE, groups // TILE, groups % TILE)


@dataclass(frozen=True)
class Strip:
    """Up to 16 rows.

    Args:
        top: Where the first one begins.
        count: How many rows.
        sink: Where they are written.
    """

    top: Expr
    count: Expr
    sink: Sink


class AmxTiles(Int8Tiles):
    """Emits blocks of up to two strips; see `Int8Tiles`."""

    def __init__(
        self, e: Int8Emitter, of: Int8Form, buffers: list[Buffer], panels: Panels, depth: Depth
    ) -> None:
        super().__init__(e, of, buffers, panels, depth)
        self.steps = steps_of(depth.groups)
        self.sums, self.origin = e.aligned(ROWS * WIDTH, "int32")
        self.fetches = panels.count * depth.all_groups * _PITCH > _MIN_FETCHED_BYTES
        self.parts, self.part = _USUAL_PARTS, e.i64(0)
        self.shaped = e.local(1, "int64")
        e.store(self.shaped, e.i64(-1), e.i64(0))

    @property
    def strips(self) -> int:
        """Strips of a block."""
        return 1 if self.steps.last else 2

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return self.strips * TILE

    def split_fetches(self, blocks: int | None) -> None:
        """Cut the fetch of a panel into as many parts as blocks are multiplied by it.

        Args:
            blocks: Of all rows; None if their number is not known.
        """
        self.parts = _USUAL_PARTS if blocks is None else max(1, min(blocks, _MAX_PARTS))

    def release(self) -> None:
        """Emit the release of the tiles, the last statement of a kernel."""
        self.e.release_tiles()

    def each_strip(
        self,
        x: Buffer,
        pitch: Expr,
        strips: tuple[Expr, Callable[[Expr], Strip]],
        panel: Opened,
        block: Expr | None = None,
    ) -> None:
        """Emit strips, two at a time.

        Args:
            x: What has the rows.
            pitch: Bytes from a row to the next.
            strips: How many there are; the strip of a number.
            panel: The columns.
            block: The number of the first block among all that the panel is multiplied by; 0 if
                it is None.
        """
        e, (count, strip_at) = self.e, strips
        with e.loop(e.divide_up(count, self.strips)) as index:
            first = e.share(index * e.i64(self.strips))
            number = index if block is None else block + index
            self.part = e.share(e.tir.floormod(number, e.i64(self.parts)))
            upper = strip_at(first)
            if self.strips == 1:
                self.block(x, pitch, [upper], panel)
                return
            with e.block() as both:
                self.block(x, pitch, [upper, strip_at(e.share(first + e.i64(1)))], panel)
            with e.block() as single:
                self.block(x, pitch, [upper], panel)
            e.branch(first + e.i64(1) < count, both, single)

    def block(self, x: Buffer, pitch: Expr, strips: Sequence[Strip], panel: Opened) -> None:
        """Emit a block: its sums, then its results.

        Args:
            x: What has the rows.
            pitch: Bytes from a row to the next.
            strips: One or, where there are no shorter last steps, two.
            panel: The columns.
        """
        e = self.e
        self._shape([strip.count for strip in strips])
        for number in range(len(strips) * panel.vectors):
            row, vector = divmod(number, panel.vectors)
            e.load_tile(2 * row + vector, self.finisher.starts, e.i64(vector * VECTOR), e.i64(0))
        tops = [strip.top for strip in strips]
        self._each_line(partial(self._add_strips, (x, pitch, tops), panel))
        for number in range(len(strips) * panel.vectors):
            row, vector = divmod(number, panel.vectors)
            at_vector = e.share(self.origin + e.i64(row * TILE * WIDTH + vector * VECTOR))
            e.store_tile(2 * row + vector, self.sums, at_vector, e.i64(WIDTH * 4))
        for number, strip in enumerate(strips):
            self._finish(e.share(self.origin + e.i64(number * TILE * WIDTH)), strip, panel)

    def _shape(self, counts: Sequence[Expr]) -> None:
        """Emit the configuration of the tiles, if it is not the last one."""
        e, steps = self.e, self.steps
        upper, lower = counts[0], counts[-1]
        width, size = BYTES, steps.size * GROUP
        groups = e.i64(steps.size)
        with e.block() as other:
            if steps.last:
                last = (e.i64(steps.last), width)
                shapes = [
                    (upper, width), (upper, width), last, last,
                    (upper, size), (upper, steps.last * GROUP), (groups, width), (groups, width),
                ]  # fmt: skip
            else:
                shapes = [
                    (upper, width), (upper, width), (lower, width), (lower, width),
                    (upper, size), (lower, size), (groups, width), (groups, width),
                ]  # fmt: skip
            e.shape_tiles(shapes)
            e.store(self.shaped, upper * e.i64(ROWS) + lower, e.i64(0))
        e.when(e.not_equal(self.shaped[e.i64(0)], upper * e.i64(ROWS) + lower), other)

    def _add_strips(
        self, rows: tuple[Buffer, Expr, Sequence[Expr]], panel: Opened, away: Expr, group: Expr
    ) -> None:
        """Emit the products of a line of each row, added to sums.

        Args:
            rows: The buffer, the stride of its rows in bytes, and where each strip begins.
            panel: The columns.
            away: The line's offset from a row's first, in bytes.
            group: Its first group of weights.
        """
        e, steps, (x, stride, tops) = self.e, self.steps, rows
        tops = [e.share(top + away) for top in tops]
        first = e.share(panel.start + group * e.i64(_PITCH))
        weight = self.buffers[self.of.weight]

        def step(left: Expr, down: Expr, a: int, b: int) -> None:
            for row, top in enumerate(tops):
                for vector in range(panel.vectors):
                    if row == 0:
                        start = first + down + e.i64(vector * BYTES)
                        e.load_tile(b + vector, weight, start, e.i64(_PITCH))
                    if vector == 0:
                        e.load_tile(a + row, x, top + left, stride)
                    e.multiply_byte_tiles(2 * row + vector, a + row, b + vector)

        with e.loop(e.i64(steps.count)) as number:
            left = e.share(number * e.i64(steps.size * GROUP))
            down = e.share(number * e.i64(steps.size * _PITCH))
            if self.fetches:
                self._fetch(e.share(first + down))
            step(left, down, _A, _B)
        if steps.last:
            done = steps.count * steps.size
            step(e.i64(done * GROUP), e.i64(done * _PITCH), _LAST_A, _LAST_B)

    def _fetch(self, start: Expr) -> None:
        """Emit the fetch of a part of the weights one panel after those of a step."""
        e, lines = self.e, -(-self.steps.size * _PITCH // (self.parts * BYTES))
        ahead = e.i64(self.depth.all_groups * _PITCH)
        start = e.share(start + ahead + self.part * e.i64(lines * BYTES))
        for line in range(lines):
            e.prefetch(self.buffers[self.of.weight], start + e.i64(line * BYTES))

    def _finish(self, sums: Expr, strip: Strip, panel: Opened) -> None:
        """Emit the results of a strip's rows from their sums."""
        e = self.e
        with e.loop(strip.count) as row:
            sink, is_row = strip.sink(row)
            with e.block() as finished:
                for vector in range(panel.vectors):
                    at = e.share(sums + row * e.i64(WIDTH) + e.i64(vector * VECTOR))
                    width = VECTOR if vector < panel.vectors - 1 else panel.lanes
                    at_vector = OutputVector(e.share(sink + e.i64(vector * VECTOR)), width, vector)
                    self.finisher.write(e.part(self.sums, at, VECTOR), at_vector)
            e.when(e.constant(1, "bool") if is_row is None else is_row, finished)
