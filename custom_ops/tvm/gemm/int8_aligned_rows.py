"""Rows of bytes for the tiles of AMX, copied to where each begins in a cache line of its own.

A tile reads 64 bytes of 16 rows. Where these lie across two lines it takes twice as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.layouts.int8_panels import GROUP

from .int8_tiles import Depth
from .nbits_emitter import BYTES

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from .int8_emitter import Int8Emitter

# The stack has 8 MB. More rows are copied in turns, each of which reads all weights again.
_MOST_BYTES = 512 * 1024
# Panels of a call, from which on a copy of rows pays. 128 rows of 768 by 768 columns take 90 us
# where rows are aligned, else 118, and 102 by a copy for each fourth of the panels; of 4,096 by
# 1,024 columns 610, 860 and 700 (Emerald Rapids, one thread, 2026-11-29).
_LEAST_PANELS = 4


def pitch_of(depth: int) -> int:
    """Return the bytes from a row of a copy to the next."""
    return -(-depth // BYTES) * BYTES


def takes(depth: Depth, block: int) -> bool:
    """Say whether tiles can read rows, as they lie or as blocks of them are copied."""
    return depth.run % GROUP == 0 or pitch_of(depth.run) * block <= _MOST_BYTES


def copies(depth: int) -> bool:
    """Say whether rows are copied where that pays.

    Of other numbers, such as 300, steps along K have fewer bytes than a line of the cache, and so
    begin anywhere in a copy too.
    """
    return bool(depth % GROUP) or depth % BYTES == 0


@dataclass(frozen=True)
class Turn:
    """Rows that are multiplied before others are copied.

    Args:
        top: The first one.
        bottom: The one behind the last.
        buffer: What has them; `top` begins at 0.
        pitch: Bytes from a row to the next.
    """

    top: Expr
    bottom: Expr
    buffer: Buffer
    pitch: Expr


class AlignedRows:
    """Emits turns: all rows in one where they lie, or copies of a number of rows each.

    Args:
        e: The emitter that writes the statements.
        x: The rows, one behind the other.
        depth: Numbers of a row.
        rows: How many there are at most; None if that is not known.
        block: Rows of a block, of which a copy has a whole number.
        panels: How many panels of columns the call computes of the rows of each run, rounded down.
    """

    def __init__(
        self, e: Int8Emitter, x: Buffer, depth: int, rows: int | None, block: int, panels: Expr
    ) -> None:
        self.e, self.x, self.depth = e, x, depth
        if not copies(depth):
            return
        self.pitch = pitch_of(depth)
        self.size = max(1, _MOST_BYTES // (self.pitch * block)) * block
        if rows is not None:
            self.size = min(self.size, -(-rows // block) * block)
        self.sink, self.origin = e.aligned(self.size * self.pitch, "uint8")
        self.is_copied = e.share(self._is_copied(panels))

    def _is_copied(self, panels: Expr) -> Expr:
        e = self.e
        if self.depth % GROUP:
            return e.constant(1, "bool")
        address = e.tir.reinterpret("uint64", e.tir.address_of(self.x[e.i64(0)]))
        away = address & e.constant(BYTES - 1, "uint64")
        is_aligned = e.equal(away, e.constant(0, "uint64"))
        return e.both(panels >= e.i64(_LEAST_PANELS), e.invert(is_aligned))

    def each_turn(self, rows: Expr, emit: Callable[[Turn], None]) -> None:
        """Emit work on all rows, given how many there are."""
        e = self.e
        if not copies(self.depth):
            emit(Turn(e.i64(0), rows, self.x, e.i64(self.depth)))
            return
        size = e.share(e.select(self.is_copied, e.i64(self.size), e.tir.max(rows, e.i64(1))))
        pitch = e.share(e.select(self.is_copied, e.i64(self.pitch), e.i64(self.depth)))
        buffer = e.either_buffer(self.is_copied, (self.sink, self.origin), (self.x, e.i64(0)))
        with e.loop(e.share(e.divide_down(rows + size - e.i64(1), size))) as number:
            top = e.share(number * size)
            bottom = e.share(e.minimum(top + size, rows))
            with e.block() as to_copy:
                self._copy(top, e.share(bottom - top))
            e.when(self.is_copied, to_copy)
            emit(Turn(top, bottom, buffer, pitch))

    def _copy(self, top: Expr, count: Expr) -> None:
        e = self.e
        with e.loop(count) as index:
            source = e.share((top + index) * e.i64(self.depth))
            to = e.share(self.origin + index * e.i64(self.pitch))
            e.copy_bytes((self.x, source), (self.sink, to), self.depth)
