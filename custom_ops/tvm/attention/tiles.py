"""How attention is cut for a processor level, and turning blocks of 16 by 16 around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..tile.registers import REGISTERS, VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

_MOST_ROWS = 8
_KEYS = 128


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


def tiling(level: str, vectors: int = 0, keys: int = 0) -> Tiling:
    """Return the tiles whose accumulators, operands and one broadcast fill a level's registers.

    Args:
        level: Of processors.
        vectors: Of queries in a block; 0: what suits most sizes.
        keys: Of a block, about; 0: what suits most sizes.
    """
    registers = REGISTERS[level]
    parts = -(-VECTOR // registers.lanes)
    vectors = vectors or (2 if parts == 1 else 1)
    wide = vectors * parts
    rows = max(1, min(_MOST_ROWS, (registers.count - 1 - wide) // wide))
    keys = (keys or _KEYS) // rows * rows
    return Tiling(vectors, keys, rows, 1 << (rows.bit_length() - 1), vectors)


def narrow(tiles: Tiling) -> Tiling:
    """Return the tiles of a block of one vector of queries, few of which may be there."""
    return replace(tiles, vectors=1, query_rows=4, columns=4)


def fill(e: TileEmitter, buffer: Buffer, count: int, value: float) -> None:
    """Write `count` numbers, whole vectors."""
    with e.each_vector(e.i64(count // VECTOR)) as (at, lane):
        e.store(buffer, e.f32(value), at + lane)


def vector_of(e: TileEmitter, value: Callable[[Expr], Expr]) -> Buffer:
    """Return a vector of what `value` gives for its lanes."""
    result = e.scratch()
    with e.vector(VECTOR) as lane:
        e.store(result, value(lane), lane)
    return result


def turn(
    e: TileEmitter,
    load: Callable[[Expr, Expr], Expr],
    keep: Callable[[Expr, Buffer], None],
    zero: Expr,
) -> None:
    """Transpose 16 rows of 16 elements.

    By shuffles that processors have as such, one instruction each: elements of four rows beside
    each other, and then the quarters of vectors. Where LLVM sees two shuffles in a row it joins
    them to what takes it three times as many instructions; a fence and loops keep them apart.

    Args:
        e: Where it is emitted.
        load: Gives an element by its row and lane.
        keep: Is given the number of each column and the vector.
        zero: A value of 0, which LLVM must not know.
    """
    half, quarter = e.scratch(VECTOR * VECTOR), e.share(zero + e.i64(4))
    fence = vector_of(e, lambda _: e.bitcast(e.cast(zero, "int32"), "float32"))
    with e.loop(quarter) as four:
        rows = [_row(e, load, e.share(four * quarter + e.i64(number))) for number in range(4)]
        low, high = (_pair(e, rows[number], rows[number + 1], _ELEMENTS) for number in (0, 2))
        for number, between in enumerate(zip(low, high, strict=True)):
            first, second = (_fenced(e, each, fence) for each in between)
            for other, mixed in enumerate(_pair(e, first, second, _PAIRS)):
                at = e.share((e.i64(8 * number + 4 * other) + four) * e.i64(VECTOR))
                with e.vector(VECTOR) as lane:
                    e.store(half, mixed[lane], at + lane)
    with e.loop(quarter) as column:
        start = e.share(column * e.i64(4 * VECTOR))
        parts = [_part(e, half, e.share(start + e.i64(n * VECTOR))) for n in range(4)]
        left, right = (_pair(e, parts[n], parts[n + 1], _QUARTERS) for n in (0, 2))
        for number, between in enumerate(zip(left, right, strict=True)):
            first, second = (_fenced(e, each, fence) for each in between)
            for other, transposed in enumerate(_pair(e, first, second, _QUARTERS)):
                keep(e.share(column + e.i64(4 * number + 8 * other)), transposed)


def _fenced(e: TileEmitter, row: Buffer, fence: Buffer) -> Buffer:
    """Return the same row, after an operation that LLVM cannot leave out."""

    def value(lane: Expr) -> Expr:
        bits = e.bitcast(row[lane], "int32") | e.bitcast(fence[lane], "int32")
        return e.bitcast(bits, "float32")

    return vector_of(e, value)


def _row(e: TileEmitter, load: Callable[[Expr, Expr], Expr], number: Expr) -> Buffer:
    return vector_of(e, lambda lane: load(number, lane))


def _part(e: TileEmitter, buffer: Buffer, start: Expr) -> Buffer:
    return vector_of(e, lambda lane: buffer[start + lane])


_Lanes = tuple[list[int], list[int]]


def _interleaved(size: int) -> _Lanes:
    """Return the lanes of two vectors, interleaved, `size` at once, of lower and of upper halves.

    Each quarter of a vector for itself.
    """
    halves: _Lanes = ([], [])
    for quarter in range(0, VECTOR, 4):
        for number, half in enumerate(halves):
            for start in range(0, 2, size):
                first = quarter + 2 * number + start
                for source in (0, VECTOR):
                    half += range(source + first, source + first + size)
    return halves


def _quarters(*numbers: int) -> list[int]:
    """Return the lanes of these quarters of two vectors, numbered through."""
    return [4 * number + lane for number in numbers for lane in range(4)]


_ELEMENTS, _PAIRS = _interleaved(1), _interleaved(2)
_QUARTERS = (_quarters(0, 2, 4, 6), _quarters(1, 3, 5, 7))


def sums_of(e: TileEmitter, rows: Sequence[Buffer]) -> Buffer:
    """Return a vector of the sums of 16 vectors each."""
    for lanes in (_ELEMENTS, _PAIRS, _QUARTERS, _QUARTERS):
        pairs = zip(rows[::2], rows[1::2], strict=True)
        halves = [_pair(e, first, second, lanes) for first, second in pairs]
        rows = [_added(e, *each) for each in halves]
    (result,) = rows
    return result


def _added(e: TileEmitter, first: Buffer, second: Buffer) -> Buffer:
    return vector_of(e, lambda lane: first[lane] + second[lane])


def _pair(e: TileEmitter, first: Buffer, second: Buffer, lanes: _Lanes) -> list[Buffer]:
    """Return two vectors of the lanes of two, which are numbered through."""
    whole = e.tir.Ramp(e.i64(0), 1, VECTOR)
    results = []
    for each in lanes:
        numbers = [e.i32(lane) for lane in each]
        results.append(e.scratch())
        e.store(results[-1], e.tir.Shuffle([first[whole], second[whole]], numbers), whole)
    return results
