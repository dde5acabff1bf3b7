"""Which tiles a convolution's product is computed in on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Multiprocessors of a GPU, about; from this many steps on a tile may be shared, by this many
#: blocks.
PROCESSORS, _MANY_STEPS, _MOST_SPLIT = 132, 16, 8
#: Blocks that keep a GPU busy. Fewer of a filter of one tap share a depth from this one on. Up to
#: the last number, blocks of a larger filter share it so that each multiprocessor has one.
_BUSY, _DEEP, _FEW_BLOCKS = 96, 2048, 33
#: Pixels of a few small images, in steps of this much of the depth.
_SMALL, _STEP = 1024, 128
#: Tiles of 32 rows where there are fewer of 64 x 32.
_FEW_WIDE = 64
#: Bytes of weights from which those of few pixels leave the L2 cache first.
_STREAMED = 1 << 19
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

    Measured on an H100, for one image on an H200 (2026-11). From 64 rows on products are those of
    warp groups, which read both factors from shared memory. With few rows there are few blocks,
    and what a step of the loop takes, some 0.2 microseconds, is what a deep product costs. Many
    channels a step are faster then, and several blocks for one tile where steps are many. Tiles
    get narrower, and lower last, where blocks would be too few.

    Args:
        pixels: Rows.
        channels: Columns.
        depth: Of one tap of the filter, or of all where taps are not apart.
        taps: Of the filter, where they are apart.
        is_gated: Whether rows are multiplied by factors as they are read.
    """
    rows, columns, step, warps, stages = 64, 32, 64, 4, 4
    high = -(-pixels // rows)
    halves, wide, narrow = (high * -(-channels // each) for each in (64, 32, 16))
    if taps > 1:
        if pixels <= _SMALL and depth >= _STEP:
            step = _STEP
            if wide < _BUSY <= narrow and taps * -(-depth // step) < _MANY_STEPS:
                columns = 16
    elif is_gated and pixels <= 256:
        rows, columns, step, warps, stages = 16, 16 if depth > 256 else 32, _STEP, 2, 4
        if depth > 512:
            columns, step, warps, stages = 32, 256, 4, 3
    elif _STEP // 2 < depth <= _STEP and pixels <= 4096:
        # One step instead of two.
        step = _STEP
        if pixels <= _SMALL and wide < _FEW_WIDE:
            rows = 32
        elif not is_gated and halves >= _BUSY:
            columns = 64
    elif is_gated:
        stages = 3
    elif pixels <= 256 and depth >= 512:
        step = _STEP
        if wide < _BUSY <= narrow:
            columns = 16
        elif wide < _BUSY and depth < _DEEP:
            rows, columns, step, stages = 16, 16 if pixels <= 64 else 32, 256, 3
    if pixels > 4096 and channels > 32:
        columns = 64
    if pixels > 50000:
        rows, stages = 128, 3
    columns = min(columns, max(16, power(channels)))
    step = min(step, max(16, power(depth)))
    steps = taps * -(-depth // step)
    tile = Tile(rows, columns, step, warps, max(2, min(stages, steps)))
    split = 1 if is_gated else _split(tile, pixels, channels, taps, steps)
    return replace(tile, split=split)


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
    if blocks >= PROCESSORS // 2 or steps < _MANY_STEPS:
        return 1
    if taps == 1:
        is_deep = pixels <= 256 and steps * tile.depth >= _DEEP
        return min(_MOST_SPLIT, 2 * PROCESSORS // blocks, steps // 2) if is_deep else 1
    share = (1 if blocks <= _FEW_BLOCKS else 2) * PROCESSORS // blocks
    return max(1, min(_MOST_SPLIT, share, steps // 3))


def is_streamed(pixels: int, weight_bytes: int) -> bool:
    """Return whether the L2 cache is to give up weights before all else.

    A resnet50 of one image reads 51 MB of weights, as much as an H200's L2 cache has, so that each
    run found none of the run before there. Its convolutions took 184 microseconds so, and 170
    where weights of 0.9 MB and more go first (H200, 2026-11).

    Args:
        pixels: Of all images.
        weight_bytes: Of the filter.
    """
    return pixels <= _SMALL and weight_bytes >= _STREAMED


#: Where tensors do not start at multiples of 16 bytes: loads are of single elements in any case.
UNALIGNED = Tile(64, 32, 32, 4, 2)
