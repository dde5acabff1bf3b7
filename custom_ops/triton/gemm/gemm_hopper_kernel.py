"""Products of rows and a matrix on Hopper: a warp that copies, and groups of warps that compute.

One warp fills shared memory with steps of the depth by tensor copies (TMA), each group of four has
some rows of a tile and gives its products to the tensor cores, one step ahead of what it waits
for. Blocks go on to further tiles as long as there are any: the copies for the next one are under
way while the last is finished. Tiles and groups: `gemm_hopper_group_kernel`, before this.
"""
# mypy: ignore-errors
# ruff: noqa: F821  names of gemm_hopper_group_kernel

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

#: Registers of a thread that copies.
COPYING: gl.constexpr = gl.constexpr(24)


@gluon.jit
def copy(x, w, v, buffers, barriers, rows, batches, known: gl.constexpr):
    """Copy rows and columns of all tiles of this block, as room for them gets free."""
    xs, ws, vs, _, _ = buffers
    ready, free, _ = barriers
    ROWS: gl.constexpr = group_rows(known)
    PIECES: gl.constexpr = pieces(known)
    STAGES: gl.constexpr = known.stages
    STEPS: gl.constexpr = count_of(known.depth, known.step)
    SECOND: gl.constexpr = v.nbytes_per_cta if has_second(known) else 0
    count, first, step = tiles_of(rows, batches, known)
    for turn in range(count):
        batch, row, column = tile_origin(first + turn * step, rows, known)
        left = batch_of(batch, 0, known)
        right = batch_of(batch, 1, known)
        for k in range(STEPS):
            i = turn * STEPS + k
            stage = i % STAGES
            bar = ready.index(stage)
            mbarrier.wait(free.index(stage), ((i // STAGES) & 1) ^ 1)
            depth = k * known.step
            mbarrier.expect(bar, PIECES * x.nbytes_per_cta + w.nbytes_per_cta + SECOND)
            for piece in gl.static_range(PIECES):
                down = row + piece * ROWS
                if known.is_lhs_transposed:
                    origin = box_origin(left, depth, down, known)
                else:
                    origin = box_origin(left, down, depth, known)
                copy_box(x, origin, bar, xs.index(stage * PIECES + piece))
            copy_columns(w, right, depth, column, bar, ws.index(stage), known)
            if has_second(known):
                other = column
                if known.rest:
                    other += known.columns_tile
                copy_columns(v, right, depth, other, bar, vs.index(stage), known)


@gluon.jit
def copy_columns(w, batch, depth, column, bar, buffer, known: gl.constexpr):
    """Copy a step of columns of a matrix."""
    if known.is_transposed:
        origin = box_origin(batch, column, depth, known)
    else:
        origin = box_origin(batch, depth, column, known)
    copy_box(w, origin, bar, buffer)


@gluon.jit
def copy_box(map_, origin, bar, buffer):
    """Copy a box into shared memory."""
    tma.async_load(
        map_, origin, bar, buffer.reinterpret(map_.dtype, map_.block_shape, map_.layout)
    )


@gluon.jit
def gemm(
    x, w, v, e0, e1, e2, e3, y, z, rows, batches,
    COLUMNS: gl.constexpr, DEPTH: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
    REST: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
    APART: gl.constexpr, BAND: gl.constexpr, TRANS_B: gl.constexpr, TRANS_A: gl.constexpr,
    IS_PAIR: gl.constexpr, KIND0: gl.constexpr, KIND1: gl.constexpr, KIND2: gl.constexpr,
    KIND3: gl.constexpr, IS_EARLY: gl.constexpr, REGISTERS: gl.constexpr, STEPS: gl.constexpr,
    MMA_DEPTH: gl.constexpr,
):  # fmt: skip
    """Write `epilogue(x @ w, [x @ v,] e0, ...)`, the sums in float32.

    With `STEPS` there are many such products: all maps have a dim more in front.

    Args:
        x: Map of [rows, DEPTH], or of [DEPTH, rows] if `TRANS_A`.
        w: Map of [DEPTH, COLUMNS], or of [COLUMNS, DEPTH] if `TRANS_B`.
        v: The second matrix if `IS_PAIR`; the same with boxes of `REST` columns if there are any;
            else anything.
        e0: A further operand of the epilogue: [COLUMNS] if `KIND0` is 1, [rows, COLUMNS] if it is
            2, [rows] if it is 3, and not looked at if it is 0; so are e1, e2 and e3.
        y: Map of [rows, COLUMNS].
        z: The same with boxes of `REST` columns, if there are any.
        rows: Of x and y.
        batches: Number of products.
        BM: Rows of a tile.
        BN: Columns of a tile, a power of two.
        REST: Additional columns of a tile.
        BK: Depth of a step.
        STAGES: Steps that there is room for.
        GROUPS: Of four warps that compute.
        APART: Whether each group has tiles of its own, instead of all a part of the rows of each.
        BAND: How many tiles lie below each other that are taken in before the next columns.
        IS_EARLY: Whether the operands are read before the product.
        REGISTERS: Of a thread that computes.
        STEPS: For x, w, and the operands (d, n): product b has their b // d % n-th tensor, or the
            b // d-th if n is 0.
        MMA_DEPTH: What one instruction of the tensor cores takes of the depth: 32 bytes.
    """
    known: gl.constexpr = known_of(
        COLUMNS, DEPTH, BM, BN, REST, BK, STAGES, GROUPS, APART, BAND, TRANS_B, TRANS_A,
        IS_PAIR, (KIND0, KIND1, KIND2, KIND3), IS_EARLY, STEPS, MMA_DEPTH,
    )  # fmt: skip
    PIECES: gl.constexpr = pieces(known)
    ROWS: gl.constexpr = group_rows(known)
    SECOND: gl.constexpr = second_columns(known)
    xs = buffer_of(x.dtype, STAGES * PIECES, ROWS, BK, TRANS_A)
    ws = buffer_of(w.dtype, STAGES, BK, BN, TRANS_B)
    vs = ws
    if has_second(known):
        vs = buffer_of(w.dtype, STAGES, BK, SECOND, TRANS_B)
    made = buffer_of(y.dtype, GROUPS, ROWS, BN, False)
    more = made
    second = y
    if REST > 0:
        more = buffer_of(y.dtype, GROUPS, ROWS, REST, False)
        second = z
    ready = mbarrier.allocate_mbarrier(batch=STAGES)
    free = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), 1)
        mbarrier.init(free.index(i), PIECES)
    turns = mbarrier.allocate_mbarrier(batch=GROUPS)
    for i in gl.static_range(GROUPS):
        mbarrier.init(turns.index(i), 1)
    fence_async_shared()
    buffers = (xs, ws, vs, made, more)
    barriers = (ready, free, turns)
    given = (e0, e1, e2, e3, rows, batches)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (compute, (y, second, buffers, barriers, given, known, 0)),
                (copy, (x, w, v, buffers, barriers, rows, batches, known)),
            ],
            [1],
            [COPYING],
        )
    else:
        gl.warp_specialize(
            [
                (compute, (y, second, buffers, barriers, given, known, 0)),
                (compute, (y, second, buffers, barriers, given, known, 1)),
                (copy, (x, w, v, buffers, barriers, rows, batches, known)),
            ],
            [4, 1],
            [REGISTERS, COPYING],
        )


@gluon.jit
def buffer_of(
    dtype: gl.constexpr, COUNT: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr,
    TRANS_B: gl.constexpr,
):  # fmt: skip
    """Return shared memory for this many boxes."""
    if TRANS_B:
        SHAPE: gl.constexpr = [COLUMNS, ROWS]
    else:
        SHAPE: gl.constexpr = [ROWS, COLUMNS]
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(SHAPE, dtype)
    return gl.allocate_shared_memory(dtype, [COUNT, SHAPE[0], SHAPE[1]], layout)
