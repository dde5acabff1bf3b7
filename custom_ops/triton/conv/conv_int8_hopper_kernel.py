"""Short convolutions of bytes on Hopper: a warp that copies, and four that compute.

A block has some channels, whose filters stay in shared memory, and goes on from tile to tile of
pixels. One warp fills shared memory with steps of the depth and with the other summand of a
result, by tensor copies (TMA). Four warps compute. What follows the sums takes longer than they
do, so that several blocks of a multiprocessor take turns.

The tensor cores give a thread pairs of columns of a row. The order of rows in the map of the
filters makes neighbours of them. So a thread has a quarter of a row of the tile, and reads and
writes it by 16 bytes. The sources of `known` and `finish` are appended to this text for each
region. `finish_operands` stands for the names of what they read.
"""
# mypy: ignore-errors
# ruff: noqa: F821

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

#: Registers of a thread that copies.
COPYING: gl.constexpr = gl.constexpr(24)


class Known(NamedTuple):
    """What is known when the kernel is compiled: see `conv_int8_hopper_kernel`."""

    channels: Any
    out: Any
    kernel: Any
    strides: Any
    dilations: Any
    pads: Any
    box: Any
    columns_tile: Any
    step: Any
    has_extra: Any


@gluon.constexpr_function
def known_of(*all_of_it):
    """Return what is known as one value."""
    return Known(*all_of_it)


@gluon.constexpr_function
def rows_of(sizes):
    """Return the pixels of a tile."""
    return sizes.box[0] * sizes.box[1] * sizes.box[2]


@gluon.constexpr_function
def pieces_of(sizes):
    """Return how many steps a tap has."""
    return -(-sizes.channels // sizes.step)


@gluon.constexpr_function
def steps_of(sizes):
    """Return how many steps a tile has."""
    return sizes.kernel[0] * sizes.kernel[1] * pieces_of(sizes)


@gluon.constexpr_function
def across_of(sizes):
    """Return how many tiles of channels there are."""
    return sizes.out // sizes.columns_tile


@gluon.jit
def tiles_of(images, rows, columns, sizes: gl.constexpr):
    """Return how many tiles of pixels this block has, the first, and the step to the next."""
    across = (columns + (sizes.box[2] - 1)) // sizes.box[2]
    down = (rows + (sizes.box[1] - 1)) // sizes.box[1]
    tiles = (images + (sizes.box[0] - 1)) // sizes.box[0] * down * across
    first = gl.program_id(0) // across_of(sizes)
    step = gl.num_programs(0) // across_of(sizes)
    return (tiles - first + step - 1) // step, first, step


@gluon.jit
def tile_origin(tile, rows, columns, sizes: gl.constexpr):
    """Return the first image, row and column of a tile."""
    across = (columns + (sizes.box[2] - 1)) // sizes.box[2]
    down = (rows + (sizes.box[1] - 1)) // sizes.box[1]
    left = tile % across * sizes.box[2]
    top = tile // across % down * sizes.box[1]
    return tile // (across * down) * sizes.box[0], top, left


@gluon.jit
def copy_box(map_, origin, bar, buffer):
    """Copy a box into shared memory."""
    tma.async_load(
        map_, origin, bar, buffer.reinterpret(map_.dtype, map_.block_shape, map_.layout)
    )


@gluon.jit
def copy(x, w, extra, buffers, barriers, pixels, sizes: gl.constexpr):
    """Copy what all tiles of this block read, as room for it gets free."""
    xs, ws, es, _ = buffers
    ready, free, given, taken, held = barriers
    images, rows, columns = pixels
    STEPS: gl.constexpr = steps_of(sizes)
    PIECES: gl.constexpr = pieces_of(sizes)
    SH: gl.constexpr = sizes.strides[0]
    SW: gl.constexpr = sizes.strides[1]
    # Rows and columns of the padding, in whole strides.
    UP: gl.constexpr = (sizes.pads[0] + SH - 1) // SH
    BACK: gl.constexpr = (sizes.pads[1] + SW - 1) // SW
    channel = gl.program_id(0) % across_of(sizes)
    mbarrier.expect(held, STEPS * w.nbytes_per_cta)
    for k in gl.static_range(STEPS):
        depth = k // PIECES * sizes.channels + k % PIECES * sizes.step
        copy_box(w, [channel, 0, 0, 0, depth], held, ws.index(k))
    count, first, step = tiles_of(images, rows, columns, sizes)
    for turn in range(count):
        image, top, left = tile_origin(first + turn * step, rows, columns, sizes)
        mbarrier.wait(free, (turn & 1) ^ 1)
        mbarrier.expect(ready, STEPS * x.nbytes_per_cta)
        for k in gl.static_range(STEPS):
            row = k // PIECES // sizes.kernel[1] * sizes.dilations[0] + (UP * SH - sizes.pads[0])
            column = k // PIECES % sizes.kernel[1] * sizes.dilations[1]
            column = column + (BACK * SW - sizes.pads[1])
            at = [
                image, top + row // SH - UP, row % SH, left + column // SW - BACK,
                column % SW * sizes.channels + k % PIECES * sizes.step,
            ]  # fmt: skip
            copy_box(x, at, ready, xs.index(k))
        if sizes.has_extra:
            mbarrier.wait(taken, (turn & 1) ^ 1)
            mbarrier.expect(given, extra.nbytes_per_cta)
            copy_box(extra, [image, top, left, channel * sizes.columns_tile], given, es.index(0))


@gluon.jit
def unsigned_dot(a, b, acc, use_acc: gl.constexpr):
    """Return `acc + a b`, or `a b`: int32 [M, N] of uint8 [M, K] and int8 [K, N]."""
    a = a.reinterpret(gl.int8, a.shape, a.layout)
    return warpgroup_mma(a, b, acc, use_acc=use_acc, is_async=True)


@gluon.jit
def in_order(acc, sizes: gl.constexpr):
    """Return the sums of a tile with channels in their order."""
    ROWS: gl.constexpr = rows_of(sizes)
    BN: gl.constexpr = sizes.columns_tile
    return acc.reshape([ROWS, BN // 8, 4, 2]).permute([0, 2, 1, 3]).reshape([ROWS, BN])


@gluon.jit
def compute(y, buffers, barriers, pixels, sizes: gl.constexpr, operands):
    """Compute the tiles of this block."""
    xs, ws, es, made = buffers
    ready, free, given, taken, held = barriers
    images, rows, columns = pixels
    ROWS: gl.constexpr = rows_of(sizes)
    BN: gl.constexpr = sizes.columns_tile
    STEPS: gl.constexpr = steps_of(sizes)
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 32])
    numbers = known(operands)
    first_channel = gl.program_id(0) % across_of(sizes) * BN
    count, first, step = tiles_of(images, rows, columns, sizes)
    mbarrier.wait(held, 0)
    for turn in range(count):
        image, top, left = tile_origin(first + turn * step, rows, columns, sizes)
        mbarrier.wait(ready, turn & 1)
        acc = gl.zeros([ROWS, BN], gl.int32, LAYOUT)
        for k in gl.static_range(STEPS):
            acc = unsigned_dot(xs.index(k), ws.index(k).permute((1, 0)), acc, k > 0)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(free)
        sums = in_order(acc, sizes)
        ORDERED: gl.constexpr = sums.type.layout
        channel = first_channel + gl.arange(0, BN, gl.SliceLayout(0, ORDERED))
        other = 0
        if sizes.has_extra:
            mbarrier.wait(given, turn & 1)
            other = es.index(0).load(ORDERED)
            # Copies that follow are of another proxy: without this they overtake the reads.
            fence_async_shared()
            mbarrier.arrive(taken)
        result = finish(sums, other, channel, operands, numbers)
        # What was written before has to be on its way.
        tma.store_wait(0)
        made.index(0).store(result.to(y.dtype))
        fence_async_shared()
        room = made.index(0).reinterpret(y.dtype, y.block_shape, y.layout)
        tma.async_store(y, [image, top, left, first_channel], room)
    tma.store_wait(0)


@gluon.jit
def conv_int8_hopper_kernel(
    x, w, y, extra, finish_operands,
    IMAGES, ROWS, COLUMNS,
    C: gl.constexpr, OUT: gl.constexpr,
    KH: gl.constexpr, KW: gl.constexpr, SH: gl.constexpr, SW: gl.constexpr,
    DH: gl.constexpr, DW: gl.constexpr, PT: gl.constexpr, PL: gl.constexpr,
    BI: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
    HAS_EXTRA: gl.constexpr,
):  # fmt: skip
    """Write `finish(conv(x, w), extra)`.

    Args:
        x: A map of uint8 [IMAGES, H / SH, SH, W / SW, SW * C], see `conv_int8_box_kernel`.
        w: One of int8 [OUT / BN, BN / 8, 4, 2, KH * KW * C]. Of a tile channel a q + 2 j + b is
            at [j, a, b]; q is BN / 4.
        y: One of [IMAGES, ROWS, COLUMNS, OUT].
        extra: One of that shape, if `HAS_EXTRA`; else anything.
        BI: Images of a tile, of BH x BW pixels each.
    """
    sizes: gl.constexpr = known_of(
        C, OUT, (KH, KW), (SH, SW), (DH, DW), (PT, PL), (BI, BH, BW), BN, BK, HAS_EXTRA
    )
    PIXELS: gl.constexpr = rows_of(sizes)
    xs = buffer_of(x.dtype, steps_of(sizes), PIXELS, BK)
    ws = buffer_of(w.dtype, steps_of(sizes), BN, BK)
    made = buffer_of(y.dtype, 1, PIXELS, BN)
    es = made
    if HAS_EXTRA:
        es = buffer_of(extra.dtype, 1, PIXELS, BN)
    ready = mbarrier.allocate_mbarrier()
    free = mbarrier.allocate_mbarrier()
    given = mbarrier.allocate_mbarrier()
    taken = mbarrier.allocate_mbarrier()
    held = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, 1)
    mbarrier.init(free, 1)
    mbarrier.init(given, 1)
    mbarrier.init(taken, 1)
    mbarrier.init(held, 1)
    fence_async_shared()
    buffers = (xs, ws, es, made)
    barriers = (ready, free, given, taken, held)
    pixels = (IMAGES, ROWS, COLUMNS)
    operands = (finish_operands,)
    gl.warp_specialize(
        [
            (compute, (y, buffers, barriers, pixels, sizes, operands)),
            (copy, (x, w, extra, buffers, barriers, pixels, sizes)),
        ],
        [1],
        [COPYING],
    )


@gluon.jit
def buffer_of(dtype: gl.constexpr, COUNT: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Return shared memory for this many boxes."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLUMNS], dtype)
    return gl.allocate_shared_memory(dtype, [COUNT, ROWS, COLUMNS], layout)


@gluon.jit
def saturated_bytes(x):
    """Return int32 as uint8: 0 for less, and 255 for more."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 t; cvt.pack.sat.u8.s32.b32 t, $4, $3, 0;"
        " cvt.pack.sat.u8.s32.b32 $0, $2, $1, t; }",
        "=r,r,r,r,r", [x], dtype=gl.uint8, is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def widened_bytes(x):
    """Return uint8 as float32: they are the lowest bits of 2^23 and more."""
    bits = gl.inline_asm_elementwise(
        "prmt.b32 $0, $4, 0x4B000000, 0x7540; prmt.b32 $1, $4, 0x4B000000, 0x7541;"
        " prmt.b32 $2, $4, 0x4B000000, 0x7542; prmt.b32 $3, $4, 0x4B000000, 0x7543;",
        "=r,=r,=r,=r,r", [x], dtype=gl.int32, is_pure=True, pack=4,
    )  # fmt: skip
    return bits.to(gl.float32, bitcast=True) - 8388608.0


@gluon.jit
def capped(x):
    """Return float32 cut to 0 and 255; numbers without a sign are ordered as their bits are."""
    bits = gl.inline_asm_elementwise(
        "min.relu.s32 $0, $1, 0x437F0000;", "=r,r", [x.to(gl.int32, bitcast=True)],
        dtype=gl.int32, is_pure=True, pack=1,
    )  # fmt: skip
    return bits.to(gl.float32, bitcast=True)


@gluon.jit
def sum_in_unit(a, b, c):
    """Return `a b + c`, rounded once and cut to 0 and 1."""
    return gl.inline_asm_elementwise(
        "fma.rn.sat.f32 $0, $1, $2, $3;", "=f,f,f,f", [a, b, c], dtype=gl.float32, is_pure=True,
        pack=1,
    )  # fmt: skip
