"""Tiles of accumulators: what does not stay in cache together is not in one tile."""

from __future__ import annotations

import pytest
from ortkit.custom_ops.tvm.tile.registers import Tile, choose_tile

KIB = 1024


@pytest.mark.parametrize(
    ("pixels", "vectors", "pitches", "tile"),
    [
        (196, 16, (0, 0), Tile(14, 2)),
        (196, 16, (4 * 1008, 64 * 1008), Tile(14, 2)),  # the sets of the cache in turn
        (196, 16, (4 * KIB, 64 * KIB), Tile(6, 4)),  # rows that share a set
        (196, 16, (2 * KIB, 32 * KIB), Tile(14, 2)),  # every other row does
        (49, 64, (8 * KIB, 64 * KIB), Tile(5, 5)),
        (49, 64, (8 * KIB, 128 * KIB), Tile(9, 3)),  # vectors of weights too
    ],
)
def test_rows_and_weights_of_a_tile_stay_in_cache(
    pixels: int, vectors: int, pitches: tuple[int, int], tile: Tile
) -> None:
    assert choose_tile(pixels, vectors, "x86-64-v4", pitches=pitches) == tile


def test_a_tile_that_was_chosen_is_kept() -> None:
    tile = choose_tile(196, 16, "x86-64-v4", rows=12, panel=2, pitches=(4 * KIB, 64 * KIB))
    assert tile == Tile(12, 2)
