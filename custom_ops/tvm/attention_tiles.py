"""How attention is cut for a processor level, and turning blocks of 16 by 16 around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .registers import REGISTERS, VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from .emitter import TileEmitter

_MOST_ROWS = 8


@dataclass(frozen=True)
class Tiling:
    """Sizes of blocks and of tiles in registers.

    Args:
        vectors: Of queries in a block.
        keys: Of a block, a multiple of `key_rows`.
        key_rows: Rows of a tile of scores, which is as wide as a block of queries.
        query_rows: Rows of a tile of results; a divisor of a vector's length.
        columns: Vectors of a tile of results.
    """

    vectors: int
    keys: int
    key_rows: int
    query_rows: int
    columns: int

    @property
    def queries(self) -> int:
        """The queries of a block."""
        return self.vectors * VECTOR


def tiling(level: str) -> Tiling:
    """Return the tiles whose accumulators, operands and one broadcast fill a level's registers."""
    registers = REGISTERS[level]
    parts = -(-VECTOR // registers.lanes)
    vectors = 2 if parts == 1 else 1
    wide = vectors * parts
    rows = min(_MOST_ROWS, (registers.count - 1 - wide) // wide)
    return Tiling(vectors, 128 // rows * rows, rows, 1 << (rows.bit_length() - 1), vectors)


def fill(e: TileEmitter, buffer: Buffer, count: int, value: float) -> None:
    """Write `count` numbers, whole vectors."""
    with e.loop(e.i64(count // VECTOR)) as number:
        at = e.share(number * e.i64(VECTOR))
        with e.vector(VECTOR) as lane:
            e.store(buffer, e.f32(value), at + lane)


def vector_of(e: TileEmitter, value: Callable[[Expr], Expr]) -> Buffer:
    """Return a vector of what `value` gives for its lanes."""
    result = e.scratch()
    with e.vector(VECTOR) as lane:
        e.store(result, value(lane), lane)
    return result


def turned_rows(
    e: TileEmitter, rows: Sequence[Expr], load: Callable[[Expr, Expr], Expr]
) -> list[Buffer]:
    """Return 16 columns of 16 rows, whose elements `load` gives by row and lane."""

    def row_vector(row: Expr) -> Buffer:
        return vector_of(e, lambda lane: load(row, lane))

    return turn(e, [row_vector(row) for row in rows])


def turn(e: TileEmitter, rows: Sequence[Buffer]) -> list[Buffer]:
    """Return 16 vectors as columns of 16 others, by swapping halves, quarters and so on."""
    turned, half = list(rows), VECTOR // 2
    while half:
        low = [lane if not lane & half else VECTOR + lane - half for lane in range(VECTOR)]
        high = [lane + half if not lane & half else VECTOR + lane for lane in range(VECTOR)]
        for row in range(VECTOR):
            if not row & half:
                pair = (turned[row], turned[row + half])
                turned[row] = _shuffled(e, pair, low)
                turned[row + half] = _shuffled(e, pair, high)
        half //= 2
    return turned


def _shuffled(e: TileEmitter, pair: tuple[Buffer, Buffer], lanes: Sequence[int]) -> Buffer:
    """Return the lanes of two vectors that are numbered through."""
    whole = e.tir.Ramp(e.i64(0), 1, VECTOR)
    value: Expr = e.tir.Shuffle([each[whole] for each in pair], [e.i32(lane) for lane in lanes])
    result = e.scratch()
    e.store(result, value, whole)
    return result
