"""Products of rows and a matrix on Hopper: a warp that copies, and groups of warps that compute.

One warp fills shared memory with steps of the depth by tensor copies (TMA), each group of four has
some rows of a tile and gives its products to the tensor cores, one step ahead of what it waits
for. Blocks go on to further tiles as long as there are any: the copies for the next one are under
way while the last is finished. `epilogue`, what follows the product, is written behind this text
for each region: a function of the products and of four further operands.
"""
# mypy: ignore-errors

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
    """What is known when the kernel is compiled: see `gemm`."""

    columns: Any
    depth: Any
    rows_tile: Any
    columns_tile: Any
    step: Any
    stages: Any
    groups: Any
    apart: Any
    band: Any
    is_turned: Any
    is_pair: Any
    kinds: Any
    is_early: Any
    mma_depth: Any


@gluon.constexpr_function
def known_of(*all_of_it):
    """Return what is known as one value."""
    return Known(*all_of_it)


@gluon.constexpr_function
def group_rows(known):
    """Return the rows of a tile that one group computes."""
    return known.rows_tile if known.apart else known.rows_tile // known.groups


@gluon.constexpr_function
def pieces(known):
    """Return how many groups share a tile."""
    return 1 if known.apart else known.groups


@gluon.constexpr_function
def result_layout(known):
    """Return where a group's result lies."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, known.columns_tile, known.mma_depth])


@gluon.constexpr_function
def count_of(size, part):
    """Return into how many parts a size is cut."""
    return -(-size // part)


@gluon.jit
def tiles_of(rows, known: gl.constexpr):
    """Return the number of tiles that this block has, the first, and the step to the next."""
    ACROSS: gl.constexpr = count_of(known.columns, known.columns_tile)
    tiles = (rows + (known.rows_tile - 1)) // known.rows_tile * ACROSS
    first = gl.program_id(1) * gl.num_programs(0) + gl.program_id(0)
    step = gl.num_programs(0) * gl.num_programs(1)
    return (tiles - first + step - 1) // step, first, step


@gluon.jit
def place_of(tile, rows, known: gl.constexpr):
    """Return the first row and column of a tile; a band of rows is taken column by column."""
    ACROSS: gl.constexpr = count_of(known.columns, known.columns_tile)
    WHOLE: gl.constexpr = ACROSS * known.band
    down = (rows + (known.rows_tile - 1)) // known.rows_tile
    first = tile // WHOLE * known.band
    height = gl.minimum(down - first, known.band)
    rest = tile % WHOLE
    return (first + rest % height) * known.rows_tile, rest // height * known.columns_tile


@gluon.jit
def read(p, row, column, rows, KIND: gl.constexpr, known: gl.constexpr):
    """Return an operand of the epilogue: 0 where none is, a row, one of all, a column."""
    if KIND == 0:
        return 0.0
    elif KIND == 1:
        return gl.load(p + column, mask=column < known.columns, other=0.0)[None, :]
    elif KIND == 3:
        return gl.load(p + row, mask=row < rows, other=0.0)[:, None]
    else:
        place = row.to(gl.int64)[:, None] * known.columns + column[None, :]
        mask = (row < rows)[:, None] & (column < known.columns)[None, :]
        return gl.load(p + place, mask=mask, other=0.0)


@gluon.jit
def widened(value, KIND: gl.constexpr):
    """Return an operand in float32."""
    if KIND == 0:
        return value
    else:
        return value.to(gl.float32)


@gluon.jit
def operands(given, row_first, column_first, known: gl.constexpr):
    """Return what the epilogue reads besides the products."""
    e0, e1, e2, e3, rows = given
    LAYOUT: gl.constexpr = result_layout(known)
    row = row_first + gl.arange(0, group_rows(known), gl.SliceLayout(1, LAYOUT))
    column = column_first + gl.arange(0, known.columns_tile, gl.SliceLayout(0, LAYOUT))
    return (
        read(e0, row, column, rows, known.kinds[0], known),
        read(e1, row, column, rows, known.kinds[1], known),
        read(e2, row, column, rows, known.kinds[2], known),
        read(e3, row, column, rows, known.kinds[3], known),
    )


@gluon.jit
def compute(y, rooms, barriers, given, known: gl.constexpr, PART: gl.constexpr):
    """The part of one group of all tiles of this block, or, where groups are apart, its tiles."""
    xs, ws, vs, made = rooms
    ready, free, turns = barriers
    rows = given[4]
    ROWS: gl.constexpr = group_rows(known)
    PIECES: gl.constexpr = pieces(known)
    STAGES: gl.constexpr = known.stages
    STEPS: gl.constexpr = count_of(known.depth, known.step)
    LAYOUT: gl.constexpr = result_layout(known)
    TILE: gl.constexpr = [ROWS, known.columns_tile]
    PIECE: gl.constexpr = 0 if known.apart else PART
    count, first, step = tiles_of(rows, known)
    room = made.index(PART)
    for turn in range(PART if known.apart else 0, count, known.groups if known.apart else 1):
        row, column = place_of(first + turn * step, rows, known)
        row += PIECE * ROWS
        if known.is_early:
            extras = operands(given, row, column, known)
        acc = gl.zeros(TILE, gl.float32, LAYOUT)
        other = acc
        if known.apart:
            # Steps have one order: who is early would take one of the round before for its own.
            phase = (turn // known.groups) & 1
            mbarrier.wait(turns.index(PART), phase ^ (1 if PART == 0 else 0))
        for k in range(STEPS):
            i = turn * STEPS + k
            stage = i % STAGES
            mbarrier.wait(ready.index(stage), (i // STAGES) & 1)
            a = xs.index(stage * PIECES + PIECE)
            b = ws.index(stage)
            if known.is_turned:
                b = b.permute((1, 0))
            acc = warpgroup_mma(a, b, acc, use_acc=k > 0, is_async=True)
            if known.is_pair:
                c = vs.index(stage)
                if known.is_turned:
                    c = c.permute((1, 0))
                other = warpgroup_mma(a, c, other, use_acc=k > 0, is_async=True)
                acc, other = warpgroup_mma_wait(2, deps=(acc, other))
            else:
                acc = warpgroup_mma_wait(1, deps=(acc,))
            mbarrier.arrive(free.index((i + STAGES - 1) % STAGES), pred=k > 0)
        if known.apart:
            mbarrier.arrive(turns.index((PART + 1) % known.groups))
        if known.is_pair:
            acc, other = warpgroup_mma_wait(0, deps=(acc, other))
        else:
            acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(free.index((turn * STEPS + STEPS - 1) % STAGES))
        if not known.is_early:
            extras = operands(given, row, column, known)
        r0 = widened(extras[0], known.kinds[0])
        r1 = widened(extras[1], known.kinds[1])
        r2 = widened(extras[2], known.kinds[2])
        r3 = widened(extras[3], known.kinds[3])
        if known.is_pair:
            result = epilogue(acc, other, r0, r1, r2, r3)  # noqa: F821
        else:
            result = epilogue(acc, r0, r1, r2, r3, 0.0)  # noqa: F821
        # What was written before has to be on its way.
        tma.store_wait(0)
        room.store(result.to(y.dtype))
        fence_async_shared()
        tma.async_store(y, [row, column], room)
    tma.store_wait(0)


@gluon.jit
def copy(x, w, v, rooms, barriers, rows, known: gl.constexpr):
    """Copy rows and columns of all tiles of this block, as room for them gets free."""
    xs, ws, vs, _ = rooms
    ready, free, _ = barriers
    ROWS: gl.constexpr = group_rows(known)
    PIECES: gl.constexpr = pieces(known)
    STAGES: gl.constexpr = known.stages
    STEPS: gl.constexpr = count_of(known.depth, known.step)
    count, first, step = tiles_of(rows, known)
    MATRICES: gl.constexpr = 2 if known.is_pair else 1
    for turn in range(count):
        row, column = place_of(first + turn * step, rows, known)
        for k in range(STEPS):
            i = turn * STEPS + k
            stage = i % STAGES
            bar = ready.index(stage)
            mbarrier.wait(free.index(stage), ((i // STAGES) & 1) ^ 1)
            mbarrier.expect(bar, PIECES * x.nbytes_per_cta + MATRICES * w.nbytes_per_cta)
            depth = k * known.step
            for piece in gl.static_range(PIECES):
                tma.async_load(
                    x, [row + piece * ROWS, depth], bar, xs.index(stage * PIECES + piece)
                )
            if known.is_turned:
                tma.async_load(w, [column, depth], bar, ws.index(stage))
                if known.is_pair:
                    tma.async_load(v, [column, depth], bar, vs.index(stage))
            else:
                tma.async_load(w, [depth, column], bar, ws.index(stage))
                if known.is_pair:
                    tma.async_load(v, [depth, column], bar, vs.index(stage))


@gluon.jit
def gemm(
    x, w, v, e0, e1, e2, e3, y, rows,
    COLUMNS: gl.constexpr, DEPTH: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
    BK: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, APART: gl.constexpr,
    BAND: gl.constexpr, IS_TURNED: gl.constexpr, IS_PAIR: gl.constexpr,
    KIND0: gl.constexpr, KIND1: gl.constexpr, KIND2: gl.constexpr, KIND3: gl.constexpr,
    IS_EARLY: gl.constexpr, REGISTERS: gl.constexpr, MMA_DEPTH: gl.constexpr,
):  # fmt: skip
    """Write `epilogue(x @ w, [x @ v,] e0, ...)`, the sums in float32.

    Args:
        x: Map of [rows, DEPTH].
        w: Map of [DEPTH, COLUMNS], or of [COLUMNS, DEPTH] if `IS_TURNED`.
        v: The second matrix if `IS_PAIR`, else any map like w.
        e0: A further operand of the epilogue: [COLUMNS] if `KIND0` is 1, [rows, COLUMNS] if it is
            2, [rows] if it is 3, and not looked at if it is 0; so are e1, e2 and e3.
        y: Map of [rows, COLUMNS].
        rows: Of x and y.
        BM: Rows of a tile.
        BN: Columns of a tile.
        BK: Depth of a step.
        STAGES: Steps that there is room for.
        GROUPS: Of four warps that compute.
        APART: Whether each group has tiles of its own, instead of all a part of the rows of each.
        BAND: How many tiles lie below each other that are taken in before the next columns.
        IS_EARLY: Whether the operands are read before the product.
        REGISTERS: Of a thread that computes.
        MMA_DEPTH: What one instruction of the tensor cores takes of the depth: 32 bytes.
    """
    known: gl.constexpr = known_of(
        COLUMNS, DEPTH, BM, BN, BK, STAGES, GROUPS, APART, BAND, IS_TURNED, IS_PAIR,
        (KIND0, KIND1, KIND2, KIND3), IS_EARLY, MMA_DEPTH,
    )  # fmt: skip
    PIECES: gl.constexpr = pieces(known)
    xs = gl.allocate_shared_memory(x.dtype, [STAGES * PIECES, group_rows(known), BK], x.layout)
    ws = gl.allocate_shared_memory(w.dtype, [STAGES, w.block_shape[0], w.block_shape[1]], w.layout)
    vs = ws
    if IS_PAIR:
        vs = gl.allocate_shared_memory(
            w.dtype, [STAGES, w.block_shape[0], w.block_shape[1]], w.layout
        )
    made = gl.allocate_shared_memory(y.dtype, [GROUPS, group_rows(known), BN], y.layout)
    ready = mbarrier.allocate_mbarrier(batch=STAGES)
    free = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), 1)
        mbarrier.init(free.index(i), PIECES)
    turns = mbarrier.allocate_mbarrier(batch=GROUPS)
    for i in gl.static_range(GROUPS):
        mbarrier.init(turns.index(i), 1)
    fence_async_shared()
    rooms = (xs, ws, vs, made)
    barriers = (ready, free, turns)
    given = (e0, e1, e2, e3, rows)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (compute, (y, rooms, barriers, given, known, 0)),
                (copy, (x, w, v, rooms, barriers, rows, known)),
            ],
            [1],
            [COPYING],
        )
    else:
        gl.warp_specialize(
            [
                (compute, (y, rooms, barriers, given, known, 0)),
                (compute, (y, rooms, barriers, given, known, 1)),
                (copy, (x, w, v, rooms, barriers, rows, known)),
            ],
            [4, 1],
            [REGISTERS, COPYING],
        )
