"""Tiles of products on Hopper, and what the groups of `gemm_hopper_kernel`, after it, compute.

The source of `epilogue` is appended to both for each region: a function of the products and of
four further operands.
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


class Known(NamedTuple):
    """What is known when the kernel is compiled: see `gemm`."""

    columns: Any
    depth: Any
    rows_tile: Any
    columns_tile: Any
    rest: Any
    step: Any
    stages: Any
    groups: Any
    apart: Any
    band: Any
    is_transposed: Any
    is_lhs_transposed: Any
    is_pair: Any
    kinds: Any
    is_early: Any
    strides: Any
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
def result_layout(columns, known):
    """Return where a group's result of this many columns lies."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, known.mma_depth])


@gluon.constexpr_function
def width_of(known):
    """Return the columns of a tile, both parts of them."""
    return known.columns_tile + known.rest


@gluon.constexpr_function
def second_columns(known):
    """Return the columns of the second sum: of another matrix, or of the rest of a tile."""
    return known.rest if known.rest else known.columns_tile


@gluon.constexpr_function
def has_second(known):
    """Say whether there is a second sum."""
    return known.is_pair or known.rest > 0


@gluon.constexpr_function
def count_of(size, part):
    """Return into how many parts a size is cut."""
    return -(-size // part)


@gluon.jit
def tiles_of(rows, batches, known: gl.constexpr):
    """Return the number of tiles that this block has, the first, and the step to the next."""
    ACROSS: gl.constexpr = count_of(known.columns, width_of(known))
    tiles = (rows + (known.rows_tile - 1)) // known.rows_tile * ACROSS
    first = gl.program_id(1) * gl.num_programs(0) + gl.program_id(0)
    step = gl.num_programs(0) * gl.num_programs(1)
    if known.strides is not None:
        tiles *= batches
        first += gl.program_id(2) * step
        step *= gl.num_programs(2)
    return (tiles - first + step - 1) // step, first, step


@gluon.jit
def tile_origin(tile, rows, known: gl.constexpr):
    """Return the number of its products and the first row and column of a tile.

    A band of rows is taken column by column.
    """
    ACROSS: gl.constexpr = count_of(known.columns, width_of(known))
    WHOLE: gl.constexpr = ACROSS * known.band
    down = (rows + (known.rows_tile - 1)) // known.rows_tile
    batch = 0
    if known.strides is not None:
        batch = tile // (down * ACROSS)
        tile = tile % (down * ACROSS)
    first = tile // WHOLE * known.band
    height = gl.minimum(down - first, known.band)
    rest = tile % WHOLE
    return batch, (first + rest % height) * known.rows_tile, rest // height * width_of(known)


@gluon.jit
def batch_of(batch, WHICH: gl.constexpr, known: gl.constexpr):
    """Return which of an operand's tensors a product has."""
    if known.strides is None:
        return 0
    elif known.strides[WHICH][1] == 1:
        return batch * 0
    elif known.strides[WHICH][1] == 0:
        return batch // known.strides[WHICH][0]
    else:
        return batch // known.strides[WHICH][0] % known.strides[WHICH][1]


@gluon.jit
def box_origin(batch, first, second, known: gl.constexpr):
    """Return where a box is in a map."""
    if known.strides is None:
        return first, second
    else:
        return batch, first, second


@gluon.jit
def read(p, batch, row, column, rows, WHICH: gl.constexpr, known: gl.constexpr):
    """Return an operand of the epilogue: 0 where there is none, a row, all rows, or a column."""
    KIND: gl.constexpr = known.kinds[WHICH]
    at = batch_of(batch, 2 + WHICH, known)
    if KIND == 0:
        return 0.0
    elif KIND == 1:
        p += at * known.columns
        return gl.load(p + column, mask=column < known.columns, other=0.0)[None, :]
    elif KIND == 3:
        return gl.load(p + row, mask=row < rows, other=0.0)[:, None]
    else:
        if known.strides is not None:
            p += at.to(gl.int64) * rows * known.columns
        offset = row.to(gl.int64)[:, None] * known.columns + column[None, :]
        mask = (row < rows)[:, None] & (column < known.columns)[None, :]
        return gl.load(p + offset, mask=mask, other=0.0)


@gluon.jit
def widened(value, KIND: gl.constexpr):
    """Return an operand in float32."""
    if KIND == 0:
        return value
    else:
        return value.to(gl.float32)


@gluon.jit
def operands(given, batch, row_first, column_first, COLUMNS: gl.constexpr, known: gl.constexpr):
    """Return what the epilogue reads in addition to the products."""
    e0, e1, e2, e3, rows, _ = given
    LAYOUT: gl.constexpr = result_layout(COLUMNS, known)
    row = row_first + gl.arange(0, group_rows(known), gl.SliceLayout(1, LAYOUT))
    column = column_first + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    return (
        read(e0, batch, row, column, rows, 0, known),
        read(e1, batch, row, column, rows, 1, known),
        read(e2, batch, row, column, rows, 2, known),
        read(e3, batch, row, column, rows, 3, known),
    )


@gluon.jit
def write(y, acc, other, extras, buffer, offset, known: gl.constexpr):
    """Finish a tile, or a part of its columns, and have it copied out."""
    r0 = widened(extras[0], known.kinds[0])
    r1 = widened(extras[1], known.kinds[1])
    r2 = widened(extras[2], known.kinds[2])
    r3 = widened(extras[3], known.kinds[3])
    if known.is_pair:
        result = epilogue(acc, other, r0, r1, r2, r3)  # noqa: F821
    else:
        result = epilogue(acc, r0, r1, r2, r3, 0.0)  # noqa: F821
    buffer.store(result.to(y.dtype))
    fence_async_shared()
    tma.async_store(y, offset, buffer.reinterpret(y.dtype, y.block_shape, y.layout))


@gluon.jit
def compute(y, z, buffers, barriers, given, known: gl.constexpr, PART: gl.constexpr):
    """The part of one group of all tiles of this block, or, where groups are apart, its tiles."""
    xs, ws, vs, made, more = buffers
    ready, free, turns = barriers
    rows, batches = given[4], given[5]
    ROWS: gl.constexpr = group_rows(known)
    PIECES: gl.constexpr = pieces(known)
    STAGES: gl.constexpr = known.stages
    STEPS: gl.constexpr = count_of(known.depth, known.step)
    FIRST: gl.constexpr = known.columns_tile
    SECOND: gl.constexpr = second_columns(known)
    PIECE: gl.constexpr = 0 if known.apart else PART
    count, first, step = tiles_of(rows, batches, known)
    for turn in range(PART if known.apart else 0, count, known.groups if known.apart else 1):
        batch, row, column = tile_origin(first + turn * step, rows, known)
        row += PIECE * ROWS
        if known.is_early:
            extras = operands(given, batch, row, column, FIRST, known)
            if known.rest:
                others = operands(given, batch, row, column + FIRST, SECOND, known)
        acc = gl.zeros([ROWS, FIRST], gl.float32, result_layout(FIRST, known))
        other = gl.zeros([ROWS, SECOND], gl.float32, result_layout(SECOND, known))
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
            if known.is_lhs_transposed:
                a = a.permute((1, 0))
            if known.is_transposed:
                b = b.permute((1, 0))
            acc = warpgroup_mma(a, b, acc, use_acc=k > 0, is_async=True)
            if has_second(known):
                c = vs.index(stage)
                if known.is_transposed:
                    c = c.permute((1, 0))
                other = warpgroup_mma(a, c, other, use_acc=k > 0, is_async=True)
                acc, other = warpgroup_mma_wait(2, deps=(acc, other))
            else:
                acc = warpgroup_mma_wait(1, deps=(acc,))
            mbarrier.arrive(free.index((i + STAGES - 1) % STAGES), pred=k > 0)
        if known.apart:
            mbarrier.arrive(turns.index((PART + 1) % known.groups))
        if has_second(known):
            acc, other = warpgroup_mma_wait(0, deps=(acc, other))
        else:
            acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(free.index((turn * STEPS + STEPS - 1) % STAGES))
        if not known.is_early:
            extras = operands(given, batch, row, column, FIRST, known)
        # What was written before has to be on its way.
        tma.store_wait(0)
        offset = box_origin(batch, row, column, known)
        write(y, acc, other, extras, made.index(PART), offset, known)
        if known.rest:
            if not known.is_early:
                others = operands(given, batch, row, column + FIRST, SECOND, known)
            offset = box_origin(batch, row, column + FIRST, known)
            write(z, other, other, others, more.index(PART), offset, known)
    tma.store_wait(0)
