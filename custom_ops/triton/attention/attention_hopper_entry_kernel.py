"""Where `attention_hopper_kernel`, which stands before it, begins: roles of warps, and copies."""
# mypy: ignore-errors
# ruff: noqa: F821  names of the modules before it

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

#: Registers of a thread that copies.
COPYING: gl.constexpr = gl.constexpr(24)


@gluon.jit
def copy_box(rows, sample, head, row, column, ready, buffer):
    """Copy a box of heads into shared memory; `ready` says when it is there."""
    mbarrier.expect(ready, rows.nbytes_per_cta)
    box = buffer.reinterpret(rows.dtype, rows.block_shape, rows.layout)
    tma.async_load(rows, [sample, head, row, column], ready, box)


@gluon.jit
def again(rows, sample, head, row, ready, buffer):
    """Copy another box than the one that is under way."""
    mbarrier.wait(ready, 0)
    mbarrier.invalidate(ready)
    mbarrier.init(ready, 1)
    fence_async_shared()
    copy_box(rows, sample, head, row, 0, ready, buffer)


@gluon.jit
def copy_mask(i, args, known: gl.constexpr):
    """Bring the mask of turn i into shared memory: boxes of it, or what it adds to all rows."""
    mask, ms, m_ready, where, first, keys = args
    first_row, head, sample = where
    stage = i % MASK_STAGES
    row = first - i * known.keys
    ready = m_ready.index(stage)
    if known.by_row:
        at_sample = sample if known.mask_batch else 0
        at_head = head if known.mask_heads else 0
        GROUPS: gl.constexpr = known.groups
        for part in gl.static_range(GROUPS):
            buffer = ms.index(stage * GROUPS + part)
            copy_box(mask, at_sample, at_head, first_row + part * GROUP, row, ready, buffer)
    else:
        ms.index(stage).store(bias_of_keys(mask, row, keys, known))
        mbarrier.arrive(ready)


@gluon.jit
def copy(args, known: gl.constexpr):
    """Copy all blocks of keys and values but the first as room for them gets free."""
    k, v, mask, buffers, barriers, where, blocks, keys, is_run = args
    _, ks, vs, ms = buffers
    _, k_ready, k_free, v_ready, v_free, m_ready, m_free, _ = barriers
    _, head, sample = where
    first, count, _, _ = blocks
    STAGES: gl.constexpr = known.stages
    shared = head // known.shared
    of_mask = (mask, ms, m_ready, where, first, keys)
    # A mask that is a run of keys is not looked at again.
    looks = count
    if known.mask != 0:
        if is_run:
            looks = count * 0
        for i in gl.static_range(MASK_STAGES):
            if i < looks:
                copy_mask(i, of_mask, known)
    for i in range(1, count):
        stage = i % STAGES
        phase = ((i // STAGES) & 1) ^ 1
        row = first - i * known.keys
        mbarrier.wait(k_free.index(stage), phase)
        copy_box(k, sample, shared, row, 0, k_ready.index(stage), ks.index(stage))
        mbarrier.wait(v_free.index(stage), phase)
        copy_box(v, sample, shared, row, 0, v_ready.index(stage), vs.index(stage))
        if known.mask != 0:
            after = i + 1
            if after >= MASK_STAGES and after < looks:
                mbarrier.wait(m_free.index(after % MASK_STAGES), ((after // MASK_STAGES) & 1) ^ 1)
                copy_mask(after, of_mask, known)


@gluon.jit
def copying_last(args, read, known: gl.constexpr, REGISTERS: gl.constexpr):
    """Let the warps that are there compute, and others with them, and one more copy."""
    if known.groups == 1:
        gl.warp_specialize([(compute, (args, known, 0)), (copy, (read, known))], [1], [COPYING])
    elif known.groups == 2:
        gl.warp_specialize(
            [
                (compute, (args, known, 0)),
                (compute, (args, known, 1)),
                (copy, (read, known)),
            ],
            [4, 1],
            [REGISTERS, COPYING],
        )
    else:
        gl.warp_specialize(
            [
                (compute, (args, known, 0)),
                (compute, (args, known, 1)),
                (compute, (args, known, 2)),
                (copy, (read, known)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, COPYING],
        )


@gluon.jit
def copying_first(args, read, known: gl.constexpr, REGISTERS: gl.constexpr):
    """Let the warps that are there copy, and others compute.

    With a mask there is so much to know that those which are there would have no registers left:
    29.2 microseconds instead of 33.6 where keys are masked (12 heads of 64, 2,048 positions).
    Without one it takes 1.5 percent more.
    """
    if known.groups == 1:
        gl.warp_specialize([(copy, (read, known)), (compute, (args, known, 0))], [4], [REGISTERS])
    elif known.groups == 2:
        gl.warp_specialize(
            [
                (copy, (read, known)),
                (compute, (args, known, 0)),
                (compute, (args, known, 1)),
            ],
            [4, 4],
            [REGISTERS, REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (copy, (read, known)),
                (compute, (args, known, 0)),
                (compute, (args, known, 1)),
                (compute, (args, known, 2)),
            ],
            [4, 4, 4],
            [REGISTERS, REGISTERS, REGISTERS],
        )


@gluon.jit
def attention(
    q, k, v, y, mask, bias, queries, keys,
    HEADS: gl.constexpr, SHARED: gl.constexpr, WIDTH: gl.constexpr, V_WIDTH: gl.constexpr,
    Q_FIRST: gl.constexpr, V_FIRST: gl.constexpr,
    SCALE: gl.constexpr, CAP: gl.constexpr, IS_CAUSAL: gl.constexpr, IS_LAST: gl.constexpr,
    WINDOW: gl.constexpr, MASK: gl.constexpr, FILL: gl.constexpr, MASK_BATCH: gl.constexpr,
    MASK_HEADS: gl.constexpr, MASK_ROWS: gl.constexpr, HAS_BIAS: gl.constexpr,
    BOUND_KEYS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
    IN_TURN: gl.constexpr,
    REGISTERS: gl.constexpr, INVERSE: gl.constexpr,
):  # fmt: skip
    """Attention of GROUPS * 64 queries of one head of one sample.

    Args:
        q, k, v, y: Maps of [batch, heads, rows, width].
        mask: Added to the scores (MASK 2), or 0 where FILL is added (MASK 1), by sample
            (MASK_BATCH), by head (MASK_HEADS). One row for all queries, or, MASK_ROWS, a map of
            [batch or 1, heads or 1, queries, keys].
        bias: [columns], added to each row of q and v (HAS_BIAS), which begin at Q_FIRST, V_FIRST.
        queries: Rows of q.
        keys: Rows of k.
        HEADS: Of q.
        SHARED: Heads of q that share one of k.
        WIDTH: Of a head of q and k; V_WIDTH alike of v and y. Boxes are as wide, or wider.
        SCALE: Of the scores, positive.
        CAP: The scores' bound, 0 for none.
        IS_CAUSAL: Whether query i sees keys up to i, or, IS_LAST, the last query all of them.
        WINDOW: How many of those a query sees, 0 for all.
        BOUND_KEYS: Whether the last block of keys may be less than whole.
        KEYS: Of a block.
        STAGES: Blocks of keys and of values that there is room for.
        IN_TURN: Whether the groups alternate in issuing products.
        REGISTERS: Of a thread that computes.
        INVERSE: Of the number that the result is divided by, which y has in eight bits; else 1.
    """
    QUERIES: gl.constexpr = GROUP * GROUPS
    if IS_CAUSAL:
        # Later queries see more keys: those that take longest begin first, of all heads.
        block = gl.num_programs(1) - 1 - gl.program_id(1)
        head = gl.program_id(0)
    else:
        block = gl.num_programs(0) - 1 - gl.program_id(0)
        head = gl.program_id(1)
    sample = gl.program_id(2)
    first_row = block * QUERIES
    first_position = first_row
    if IS_LAST:
        first_position = first_row + (keys - queries)
    low = keys * 0
    high = keys
    # Blocks that end beyond this place, or begin before that one, are not seen whole.
    plain_high = keys
    plain_low = keys * 0
    begin = keys * 0
    end = keys
    is_run = keys < 0
    if IS_CAUSAL:
        high = gl.minimum(high, first_position + QUERIES)
        plain_high = gl.minimum(plain_high, first_position + 1)
    if WINDOW > 0:
        low = gl.maximum(0, first_position - WINDOW + 1)
        plain_low = gl.maximum(0, first_position + QUERIES - WINDOW)
    dtype: gl.constexpr = q.dtype
    W: gl.constexpr = q.block_shape[3]
    V: gl.constexpr = v.block_shape[3]
    K_ROOM: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, W], dtype)
    V_ROOM: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, V], dtype)
    qs = gl.allocate_shared_memory(dtype, [GROUPS, GROUP, W], K_ROOM)
    ks = gl.allocate_shared_memory(dtype, [STAGES, KEYS, W], K_ROOM)
    vs = gl.allocate_shared_memory(dtype, [STAGES, KEYS, V], V_ROOM)
    q_ready = mbarrier.allocate_mbarrier()
    k_ready = mbarrier.allocate_mbarrier(batch=STAGES)
    k_free = mbarrier.allocate_mbarrier(batch=STAGES)
    v_ready = mbarrier.allocate_mbarrier(batch=STAGES)
    v_free = mbarrier.allocate_mbarrier(batch=STAGES)
    turns = mbarrier.allocate_mbarrier(batch=GROUPS)
    mbarrier.init(q_ready, GROUPS)
    if MASK == 0:
        ms = ks
        m_ready = turns
        m_free = turns
    else:
        if MASK_ROWS:
            M_ROOM: gl.constexpr = gl.NVMMASharedLayout.get_default_for([GROUP, KEYS], mask.dtype)
            ms = gl.allocate_shared_memory(mask.dtype, [MASK_STAGES * GROUPS, GROUP, KEYS], M_ROOM)
        else:
            M_ROOM: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
            ms = gl.allocate_shared_memory(gl.float32, [MASK_STAGES, KEYS], M_ROOM)
        m_ready = mbarrier.allocate_mbarrier(batch=MASK_STAGES)
        m_free = mbarrier.allocate_mbarrier(batch=MASK_STAGES)
        for i in gl.static_range(MASK_STAGES):
            mbarrier.init(m_ready.index(i), GROUPS if MASK_ROWS else 1)
            mbarrier.init(m_free.index(i), GROUPS)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(i), 1)
        mbarrier.init(v_ready.index(i), 1)
        mbarrier.init(k_free.index(i), GROUPS)
        mbarrier.init(v_free.index(i), GROUPS)
    for i in gl.static_range(GROUPS):
        mbarrier.init(turns.index(i), 1)
    fence_async_shared()
    # While the mask is looked at, these are under way: without one they are the first.
    guess = gl.maximum(high - 1, 0) // KEYS
    shared = head // SHARED
    for part in gl.static_range(GROUPS):
        copy_box(q, sample, head, first_row + part * GROUP, 0, q_ready, qs.index(part))
    copy_box(k, sample, shared, guess * KEYS, 0, k_ready.index(0), ks.index(0))
    copy_box(v, sample, shared, guess * KEYS, 0, v_ready.index(0), vs.index(0))
    if MASK != 0 and not MASK_ROWS:
        if MASK_BATCH:
            mask += sample.to(gl.int64) * (HEADS if MASK_HEADS else 1) * keys
        if MASK_HEADS:
            mask += head.to(gl.int64) * keys
        # A query that causality leaves nothing but lost keys is to have their mean.
        NEVER: gl.constexpr = (MASK == 1) and FILL < -3.4e38
        if MASK == 2 or FILL <= LOST:
            first_kept, last_kept, is_run = kept_keys(mask, keys, MASK == 1)
            if NEVER or not IS_CAUSAL:
                low = gl.maximum(low, first_kept)
            else:
                is_run = is_run & (first_kept == 0)
            if NEVER or WINDOW == 0:
                high = gl.minimum(high, last_kept)
            # Where a window moves over it, each query would see another part of the run.
            is_run = is_run & (WINDOW == 0)
            if is_run:
                begin = first_kept
                end = last_kept
                plain_high = gl.minimum(plain_high, end)
    last = gl.maximum(high - 1 - begin, 0) // KEYS
    if MASK != 0 and not MASK_ROWS:
        row = begin + last * KEYS
        if row != guess * KEYS:
            again(k, sample, shared, row, k_ready.index(0), ks.index(0))
            again(v, sample, shared, row, v_ready.index(0), vs.index(0))
    count = gl.maximum(last - gl.maximum(low - begin, 0) // KEYS + 1, 1)
    # Turns up to checked_high, and from checked_low on, look at places.
    checked_high = keys * 0 + 1
    checked_low = count
    if IS_CAUSAL:
        whole = gl.maximum(plain_high - begin, 0) // KEYS
        checked_high = gl.minimum(gl.maximum(last - whole + 1, 1), count)
    if WINDOW > 0:
        checked_low = last + 1 - (plain_low + KEYS - 1) // KEYS
        checked_low = gl.minimum(gl.maximum(checked_low, checked_high), count)
    known: gl.constexpr = known_of(
        SHARED, WIDTH, V_WIDTH, Q_FIRST, V_FIRST, SCALE, CAP, IS_CAUSAL, IS_LAST, WINDOW, MASK,
        MASK_ROWS, MASK_BATCH, MASK_HEADS, FILL, HAS_BIAS, BOUND_KEYS, KEYS, STAGES, GROUPS,
        IN_TURN, INVERSE,
    )  # fmt: skip
    buffers = (qs, ks, vs, ms)
    barriers = (q_ready, k_ready, k_free, v_ready, v_free, m_ready, m_free, turns)
    given = (bias, queries, keys, is_run, end)
    where = (first_row, head, sample)
    blocks = (begin + last * KEYS, count, checked_high, checked_low)
    given = (y, buffers, barriers, given, where, blocks)
    read = (k, v, mask, buffers, barriers, where, blocks, keys, is_run)
    if MASK != 0:
        copying_first(given, read, known, REGISTERS)
    else:
        copying_last(given, read, known, REGISTERS)
