"""Which tiles a convolution's product is computed in on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Multiprocessors of a GPU, about; from this many steps on a tile may be shared, by this many
#: blocks.
_PROCESSORS, _MANY_STEPS, _MOST_SPLIT = 132, 16, 8
#: Up to this many, boxes are too few to keep a GPU busy; fewer channels are read fast enough.
_FEW_PIXELS, _GATED_PIXELS, _LEAST_CHANNELS, _LEAST_DEPTH = 1024, 4096, 64, 128
#: So few blocks of 128 x 64 share the depth, if it has this many steps, a block this many of them,
#: and the boxes this many pixels.
_SHARED_BLOCKS, _SHARED_STEPS, _LEAST_STEPS, _SHARED_PIXELS = 64, 32, 8, 256
#: Fewer blocks of 128 x 128, and of 128 x 64, leave too many multiprocessors idle.
_LEAST_BLOCKS, _LEAST_HALVES = 96, 52


@dataclass(frozen=True)
class Tile:
    """Of one block: pixels by output channels, with this much of the depth at a time."""

    pixels: int
    channels: int
    depth: int
    warps: int
    stages: int
    split: int = 1
    """How many blocks share the depth of a tile."""


def power(size: int) -> int:
    """Return the smallest power of two that is not less."""
    return 1 << max(size - 1, 0).bit_length()


def choose_tile(
    pixels: int, channels: int, depth: int, taps: int = 1, is_gated: bool = False
) -> Tile:
    """Return a tile for a product of [pixels, depth] and [depth, channels], of each tap.

    Measured on an H100 (2026-11). From 64 rows on products are those of warp groups, which read
    both factors from shared memory. With few rows there are few blocks, and what a step of the
    loop takes, some 0.2 microseconds, is what a deep product costs: small tiles with many
    channels a step are faster then, and several blocks for one tile where steps are many.

    Args:
        pixels: Rows.
        channels: Columns.
        depth: Of one tap of the filter, or of all where taps are not apart.
        taps: Of the filter, where they are apart.
        is_gated: Whether rows are multiplied by factors as they are read.
    """
    rows, columns, step, warps, stages = 64, 32, 64, 4, 4
    if taps > 1:
        if pixels <= 1024 and depth >= 128:
            step = 128
    elif is_gated:
        stages = 3
        if pixels <= 256:
            rows, columns, step, warps, stages = 16, 16 if depth > 256 else 32, 128, 2, 4
    elif pixels <= 256 and depth >= 512:
        rows, columns, step, stages = 16, 16 if pixels <= 64 else 32, 256, 3
    if pixels > 4096 and channels > 32:
        columns = 64
    if pixels > 50000:
        rows, stages = 128, 3
    columns = min(columns, max(16, power(channels)))
    step = min(step, max(16, power(depth)))
    steps = taps * -(-depth // step)
    tile = Tile(rows, columns, step, warps, max(2, min(stages, steps)))
    return replace(tile, split=_split(tile, pixels, channels, taps, steps))


def choose_box(
    pixels: int, channels: int, depth: int, taps: int = 1, is_gated: bool = False
) -> Tile | None:
    """Return a tile for a product whose factors are copied by boxes, None where it does not pay.

    Measured on an H100 (2026-11) for 8 and 32 images: 0.5 to 0.8 of what `choose_tile` takes where
    channels are many; no gain at 56 x 56 over 64 channels, where memory decides, and a loss where
    the depth is two steps. Blocks that share a tile pay where there are few: 3 x 3 over 512
    channels of 7 x 7 take 12.2 microseconds for 8 images (19.7 without), 26 for 32 either way.

    Args:
        pixels: Rows.
        channels: Columns.
        depth: Of one tap of the filter.
        taps: Of the filter.
        is_gated: Whether rows are multiplied by factors, for which they go through registers.
    """
    if channels < _LEAST_CHANNELS or depth < _LEAST_DEPTH:
        return None
    rows = -(-pixels // 128)
    halves, blocks = rows * -(-channels // 64), rows * -(-channels // 128)
    step = min(64, max(16, power(depth)))
    steps = taps * -(-depth // step)
    split = 1
    if not is_gated and halves <= _SHARED_BLOCKS and steps >= _SHARED_STEPS:
        split = min(_MOST_SPLIT, 4 * _SHARED_BLOCKS // halves, steps // _LEAST_STEPS)
    least = _GATED_PIXELS if is_gated else _SHARED_PIXELS if split > 1 else _FEW_PIXELS
    if pixels <= least or halves * split < _LEAST_HALVES:
        return None
    if is_gated or channels < 128 or blocks < _LEAST_BLOCKS or split > 1:
        return Tile(128, min(64, max(16, power(channels))), step, 4, 4, split)
    return Tile(128, 128, step, 4, 3)


def _split(tile: Tile, pixels: int, channels: int, taps: int, steps: int) -> int:
    """Return how many blocks share a tile: it has to pay for a launch that adds them up."""
    blocks = -(-pixels // tile.pixels) * -(-channels // tile.channels)
    if taps == 1 or blocks >= _PROCESSORS // 2 or steps < _MANY_STEPS:
        return 1
    return max(1, min(_MOST_SPLIT, 2 * _PROCESSORS // blocks, steps // 3))


#: Where tensors do not start at multiples of 16 bytes: loads are of single elements in any case.
UNALIGNED = Tile(64, 32, 32, 4, 2)
