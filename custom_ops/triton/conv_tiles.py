"""Which tiles a convolution's product is computed in on a GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """Of one block: pixels by output channels, with this much of the depth at a time."""

    pixels: int
    channels: int
    depth: int
    warps: int
    stages: int


def power(size: int) -> int:
    """Return the smallest power of two that is not less."""
    return 1 << max(size - 1, 0).bit_length()


def choose_tile(pixels: int, channels: int, depth: int, is_gated: bool = False) -> Tile:
    """Return a tile for a product of [pixels, depth] and [depth, channels].

    Measured on an H100 (2026-11): from 64 rows on products are those of warp groups, which read
    both factors from shared memory; where one goes through registers to its gate smaller tiles
    are faster, as there are more of them.

    Args:
        pixels: Rows.
        channels: Columns.
        depth: Of one tap of the filter, or of all where taps are not apart.
        is_gated: Whether rows are multiplied by factors as they are read.
    """
    if is_gated and pixels <= 1024:
        rows, columns, warps = 16, 32, 2
    elif pixels <= 50000:
        rows, columns, warps = 64, 32, 4
    else:
        rows, columns, warps = 128, 64, 4
    columns = min(columns, max(16, power(channels)))
    step = min(128 if rows == 16 else 64, max(16, power(depth)))
    return Tile(rows, columns, step, warps, max(2, min(4, -(-depth // step))))


#: Where tensors do not start at multiples of 16 bytes: loads are of single elements in any case.
UNALIGNED = Tile(64, 32, 32, 4, 2)
