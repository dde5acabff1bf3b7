"""What a processor level has for tiles of accumulators, and the tile that suits a size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, gcd

#: Channels are packed, loaded and stored in vectors of this many float32, whatever the machine.
VECTOR = 16


# Addresses a multiple of this apart share a set of the first level of cache, and of the second.
_NEAR_WAY_BYTES, _FAR_WAY_BYTES = 1 << 12, 1 << 17
# How many rows, and vectors of weights, may share one. Measured on Zen 4 (8 ways in both levels,
# 2026-11-28, one thread, multiply-adds a nanosecond): with rows 4 KiB apart tiles of 4 to 8 rows
# reach 57 to 58, of 10 rows 56, of 12 51, of 14 42. With vectors 128 KiB apart tiles of 8 x 3 and
# 4 x 4 reach 56, of 6 x 4 48, of 4 x 6 39.
_MOST_ROWS_OF_SET, _MOST_VECTORS_OF_SET = 10, 3
# Addresses that there are registers for.
_MOST_ADDRESSES = 8
#: Multiply-adds that keep the processor busy: it begins two a cycle, which take four.
BUSY = 8


@dataclass(frozen=True)
class RegisterFile:
    """The vector registers of a level: how many, and how many float32 each holds."""

    count: int
    lanes: int


REGISTERS: dict[str, RegisterFile] = {
    "x86-64": RegisterFile(16, 4),
    "x86-64-v2": RegisterFile(16, 4),
    "x86-64-v3": RegisterFile(16, 8),
    "x86-64-v4": RegisterFile(32, 16),
    "x86-64-v4-vnni": RegisterFile(32, 16),
    "x86-64-v4-bf16": RegisterFile(32, 16),
    "x86-64-v4-amx": RegisterFile(32, 16),
    "aarch64": RegisterFile(32, 4),
}


@dataclass(frozen=True)
class Tile:
    """Accumulators of one matrix tile: `rows` pixels of `vectors` vectors of channels each."""

    rows: int
    vectors: int


def choose_tile(
    pixels: int | None,
    vectors: int,
    level: str,
    rows: int = 0,
    panel: int = 0,
    *,
    scaled: bool = False,
    pitches: tuple[int, int] = (0, 0),
) -> Tile:
    """Return the tile that covers `pixels` x `vectors` in the fewest cycles of a simple model.

    A step along the depth costs its multiply-adds at two a cycle, or its loads at two a cycle,
    but not less than the latency of one.

    Args:
        pixels: Rows of the product that lie next to each other; None if not known.
        vectors: Columns of the product in vectors.
        level: Of `REGISTERS`.
        rows: Of a tile, chosen before; 0: as the model says.
        panel: Its vectors, likewise.
        scaled: The weights are multiplied by a factor of each depth on their way.
        pitches: Bytes from a row to the next one, and from a vector of weights to the next one; 0
            where that is no matter.
    """
    parts = ceil(VECTOR / REGISTERS[level].lanes)
    most_rows, most_vectors = _most_of_set(*pitches)
    best, best_cost = Tile(1, 1), float("inf")
    for tile in _tiles(vectors, level):
        if tile.rows > most_rows or tile.vectors > most_vectors:
            continue
        total = _cost(tile, pixels, vectors, parts, scaled=scaled)
        if total < best_cost * 0.999:
            best, best_cost = tile, total
    height = rows or best.rows
    height = height if pixels is None else max(1, min(height, pixels))
    return Tile(height, min(vectors, panel or best.vectors))


def even_tile(pixels: int, vectors: int, level: str) -> Tile:
    """Return the tile that does so where the last rows of tiles are as high as the others.

    Args:
        pixels: As in `choose_tile`.
        vectors: As there.
        level: Of `REGISTERS`.
    """
    parts = ceil(VECTOR / REGISTERS[level].lanes)

    def cost(tile: Tile) -> float:
        rows = ceil(pixels / tile.rows) * tile.rows
        return _cost(tile, rows, vectors, parts, scaled=False)

    return min(_tiles(vectors, level), key=cost)


@dataclass(frozen=True)
class TileRows:
    """Tiles of a number of rows that is known at run time only: tall ones, then low ones.

    Args:
        tall: Rows of a tall tile.
        low: Of a low one, which are just enough to keep the multiply-adds busy.
        vectors: Of columns, of both.
    """

    tall: int
    low: int
    vectors: int


def tile_rows(vectors: int, level: str, busy: int = BUSY) -> TileRows:
    """Return the tiles for rows whose addresses are all different.

    Args:
        vectors: Columns of the product in vectors.
        level: Of `REGISTERS`.
        busy: Multiply-adds of a step of a low tile, at least.
    """
    parts = ceil(VECTOR / REGISTERS[level].lanes)

    def cost(tile: Tile) -> float:
        return _cost(tile, tile.rows, vectors, parts, scaled=False) / tile.rows

    tiles = [tile for tile in _tiles(vectors, level) if tile.rows <= _MOST_ADDRESSES]
    best = min(tiles, key=cost)
    low = ceil(busy / (best.vectors * parts))
    return TileRows(best.rows, min(low, best.rows), best.vectors)


def _most_of_set(row_pitch: int, vector_pitch: int) -> tuple[int, int]:
    """Return how many rows and vectors a tile may have without driving each other out of cache."""
    rows = _MOST_ROWS_OF_SET * _NEAR_WAY_BYTES // gcd(row_pitch or 1, _NEAR_WAY_BYTES)
    is_one_set = vector_pitch and vector_pitch % _FAR_WAY_BYTES == 0
    return rows, _MOST_VECTORS_OF_SET if is_one_set else VECTOR


def _tiles(vectors: int, level: str) -> Iterator[Tile]:
    """Yield the tiles whose accumulators leave registers for a column and a row."""
    file = REGISTERS[level]
    parts = ceil(VECTOR / file.lanes)
    for width in range(1, min(vectors, 6) + 1):
        most = min((file.count - 1) // (width * parts) - 1, 14)
        for rows in range(1, most + 1):
            yield Tile(rows, width)


def _cost(tile: Tile, pixels: int | None, vectors: int, parts: int, *, scaled: bool) -> float:
    full, rest = divmod(vectors, tile.vectors)
    widths = [(tile.vectors, full), (rest, 1 if rest else 0)]
    if pixels is None:
        heights: list[tuple[int, float]] = [(tile.rows, 1 / tile.rows)]
    else:
        count, left = divmod(pixels, tile.rows)
        heights = [(tile.rows, count), (left, 1 if left else 0)]
    return sum(
        _step(rows, width, parts, scaled=scaled) * times * number
        for rows, times in heights
        for width, number in widths
        if times and number
    )


def _step(rows: int, width: int, parts: int, *, scaled: bool) -> float:
    columns = width * parts
    multiplies = (rows + (1 if scaled else 0)) * columns
    return max(multiplies / 2, (rows + columns) / 2, 4.0) + 0.5
