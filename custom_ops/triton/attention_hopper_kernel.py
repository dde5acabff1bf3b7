"""softmax(scale Q K^T + mask) V on Hopper: a warp that copies, and groups of warps that compute.

One warp fills shared memory with blocks of keys and values by tensor copies (TMA), each group of
four works on 64 queries. While a group computes the softmax of a block of keys, the tensor cores
have its product with the values before, and the products of the groups beside it (Shah, Bikshandi,
Zhang, Thakkar, Ramani and Dao, "FlashAttention-3", 2024). Blocks of keys are taken from the last
one on, so that those come first of which some are not seen. The rest is as in `attention_kernel`.

A mask of keys that keeps a run of them and adds nothing to it, as padding does, is not looked at
again: blocks begin where the run does, and the last one ends with it.
"""
# mypy: ignore-errors
# ruff: noqa: F821  names of attention_hopper_group_kernel

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
def take_in(
    low, high, state, q, rooms, barriers, first, position, seen,
    known: gl.constexpr, CHECKED: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Take in blocks of keys: the scores of turn i beside the product with the values of i - 1.

    CHECKED: Not all of them are seen whole by all queries.
    """
    p, acc, top, total = state
    ks, vs = rooms
    k_ready, k_free, v_ready, v_free, turns = barriers
    SCORES: gl.constexpr = scores_layout(known)
    RESULT: gl.constexpr = result_layout(vs.shape[2])
    STAGES: gl.constexpr = known.stages
    for i in range(low, high):
        stage = i % STAGES
        before = (i - 1) % STAGES
        if known.in_turn:
            mbarrier.wait(turns.index(PART), (i & 1) ^ (1 if PART == 0 else 0))
        mbarrier.wait(k_ready.index(stage), (i // STAGES) & 1)
        made = warpgroup_mma(
            q, ks.index(stage).permute((1, 0)), gl.zeros([GROUP, known.keys], gl.float32, SCORES),
            use_acc=False, is_async=True,
        )  # fmt: skip
        mbarrier.wait(v_ready.index(before), ((i - 1) // STAGES) & 1)
        summed = warpgroup_mma(p, vs.index(before), acc, is_async=True)
        if known.in_turn:
            mbarrier.arrive(turns.index((PART + 1) % known.groups))
        scores = warpgroup_mma_wait(1, deps=(made,))
        mbarrier.arrive(k_free.index(stage))
        start = first - i * known.keys
        weights, top, total, faded = soften(
            scores, top, total, start, position, seen, known, CHECKED
        )
        acc = warpgroup_mma_wait(0, deps=(summed,))
        mbarrier.arrive(v_free.index(before))
        acc = acc * gl.convert_layout(faded, gl.SliceLayout(1, RESULT))[:, None]
        p = gl.convert_layout(weights.to(q.dtype), gl.DotOperandLayout(0, RESULT, 2))
    return p, acc, top, total


@gluon.jit
def sweep(
    q, rooms, barriers, blocks, position, seen,
    known: gl.constexpr, IS_RUN: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Take in all blocks of keys, from the last one on, but for the values of the first.

    IS_RUN: Keys behind the last block may not be seen.
    """
    first, count, checked_high, checked_low = blocks
    ks, vs = rooms
    k_ready, k_free, _, _, turns = barriers
    SCORES: gl.constexpr = scores_layout(known)
    RESULT: gl.constexpr = result_layout(vs.shape[2])
    IS_CUT: gl.constexpr = known.bound_keys and known.mask == 0
    top = gl.full([GROUP], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    total = gl.zeros([GROUP], gl.float32, gl.SliceLayout(1, SCORES))
    acc = gl.zeros([GROUP, vs.shape[2]], gl.float32, RESULT)
    if known.in_turn and PART != 0:
        mbarrier.wait(turns.index(PART), 0)
    mbarrier.wait(k_ready.index(0), 0)
    made = warpgroup_mma(
        q, ks.index(0).permute((1, 0)), gl.zeros([GROUP, known.keys], gl.float32, SCORES),
        use_acc=False, is_async=True,
    )  # fmt: skip
    if known.in_turn:
        mbarrier.arrive(turns.index((PART + 1) % known.groups))
    scores = warpgroup_mma_wait(0, deps=(made,))
    mbarrier.arrive(k_free.index(0))
    weights, top, total, _ = soften(
        scores, top, total, first, position, seen, known,
        IS_RUN or IS_CUT or known.is_causal,
    )  # fmt: skip
    p = gl.convert_layout(weights.to(q.dtype), gl.DotOperandLayout(0, RESULT, 2))
    state = (p, acc, top, total)
    # Without causality the last block is the only one that ends beyond what is seen.
    if known.is_causal:
        state = take_in(
            1, checked_high, state, q, rooms, barriers, first, position, seen, known, True, PART
        )
    state = take_in(
        checked_high, checked_low, state, q, rooms, barriers, first, position, seen, known, False,
        PART,
    )  # fmt: skip
    if known.window > 0:
        state = take_in(
            checked_low, count, state, q, rooms, barriers, first, position, seen, known, True, PART
        )
    p, acc, _, total = state
    return p, acc, total


@gluon.jit
def compute(y, rooms, barriers, given, where, blocks, known: gl.constexpr, PART: gl.constexpr):
    """Attention of the queries of one group of warps."""
    qs, ks, vs = rooms
    q_ready, k_ready, k_free, v_ready, v_free, turns = barriers
    mask, bias, queries, keys, is_run, end = given
    first_row, head, sample = where
    _, count, _, _ = blocks
    V: gl.constexpr = vs.shape[2]
    STAGES: gl.constexpr = known.stages
    RESULT: gl.constexpr = result_layout(V)
    q = qs.index(PART)
    first_row += PART * GROUP
    position = first_row + gl.arange(0, GROUP, gl.SliceLayout(1, scores_layout(known)))
    if known.is_last:
        position += keys - queries
    mbarrier.wait(q_ready, 0)
    if known.has_bias:
        biased(q, bias + head * known.width + known.q_first, known)
    seen = (mask, end)
    rooms = (ks, vs)
    barriers = (k_ready, k_free, v_ready, v_free, turns)
    MAY_BE_RUN: gl.constexpr = known.mask == 2 or (known.mask == 1 and known.fill <= LOST)
    if MAY_BE_RUN:
        if is_run:
            p, acc, total = sweep(
                q, rooms, barriers, blocks, position, seen, without_mask(known), True, PART
            )
        else:
            p, acc, total = sweep(q, rooms, barriers, blocks, position, seen, known, False, PART)
    else:
        p, acc, total = sweep(q, rooms, barriers, blocks, position, seen, known, False, PART)
    before = (count - 1) % STAGES
    mbarrier.wait(v_ready.index(before), ((count - 1) // STAGES) & 1)
    summed = warpgroup_mma(p, vs.index(before), acc, is_async=True)
    # A query that sees no key gets 0.
    share = 1.0 / gl.where(total == 0.0, 1.0, total)
    acc = warpgroup_mma_wait(0, deps=(summed,))
    acc = acc * gl.convert_layout(share, gl.SliceLayout(1, RESULT))[:, None]
    if known.has_bias:
        column = gl.arange(0, V, gl.SliceLayout(0, RESULT))
        moved = bias + head // known.shared * known.v_width + known.v_first + column
        row = gl.load(moved, mask=column < known.v_width, other=0.0)
        acc += row.to(gl.float32)[None, :]
    made = q.reinterpret(q.dtype, [GROUP, V], vs.layout)
    made.store(acc.to(q.dtype))
    fence_async_shared()
    box = made.reinterpret(q.dtype, [1, 1, GROUP, V], y.layout)
    tma.async_store(y, [sample, head, first_row, 0], box)
    tma.store_wait(0)


@gluon.jit
def copy_box(rows, sample, head, row, ready, room):
    """Copy a box of heads into shared memory; `ready` says when it is there."""
    mbarrier.expect(ready, rows.nbytes_per_cta)
    box = room.reinterpret(rows.dtype, rows.block_shape, rows.layout)
    tma.async_load(rows, [sample, head, row, 0], ready, box)


@gluon.jit
def again(rows, sample, head, row, ready, room):
    """Copy another box than the one that is under way."""
    mbarrier.wait(ready, 0)
    mbarrier.invalidate(ready)
    mbarrier.init(ready, 1)
    fence_async_shared()
    copy_box(rows, sample, head, row, ready, room)


@gluon.jit
def copy(k, v, rooms, barriers, where, blocks, known: gl.constexpr):
    """Copy all blocks of keys and values but the first as room for them gets free."""
    _, ks, vs = rooms
    _, k_ready, k_free, v_ready, v_free, _ = barriers
    _, head, sample = where
    first, count, _, _ = blocks
    STAGES: gl.constexpr = known.stages
    shared = head // known.shared
    for i in range(1, count):
        stage = i % STAGES
        phase = ((i // STAGES) & 1) ^ 1
        row = first - i * known.keys
        mbarrier.wait(k_free.index(stage), phase)
        copy_box(k, sample, shared, row, k_ready.index(stage), ks.index(stage))
        mbarrier.wait(v_free.index(stage), phase)
        copy_box(v, sample, shared, row, v_ready.index(stage), vs.index(stage))


@gluon.jit
def attention(
    q, k, v, y, mask, bias, queries, keys,
    HEADS: gl.constexpr, SHARED: gl.constexpr, WIDTH: gl.constexpr, V_WIDTH: gl.constexpr,
    Q_FIRST: gl.constexpr, V_FIRST: gl.constexpr,
    SCALE: gl.constexpr, CAP: gl.constexpr, IS_CAUSAL: gl.constexpr, IS_LAST: gl.constexpr,
    WINDOW: gl.constexpr, MASK: gl.constexpr, FILL: gl.constexpr, MASK_BATCH: gl.constexpr,
    MASK_HEADS: gl.constexpr, HAS_BIAS: gl.constexpr, BOUND_KEYS: gl.constexpr,
    KEYS: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, IN_TURN: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """Attention of GROUPS * 64 queries of one head of one sample.

    Args:
        q, k, v, y: Maps of [batch, heads, rows, width].
        mask: One row for all queries: added to the scores (MASK 2), or 0 where FILL is added
            (MASK 1), by sample (MASK_BATCH), by head (MASK_HEADS).
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
        IN_TURN: Whether the groups issue products by turns.
        REGISTERS: Of a thread that computes.
    """
    QUERIES: gl.constexpr = GROUP * GROUPS
    # Later queries see more keys: those that take longest begin first.
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
        copy_box(q, sample, head, first_row + part * GROUP, q_ready, qs.index(part))
    copy_box(k, sample, shared, guess * KEYS, k_ready.index(0), ks.index(0))
    copy_box(v, sample, shared, guess * KEYS, v_ready.index(0), vs.index(0))
    if MASK != 0:
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
    if MASK != 0:
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
        FILL, HAS_BIAS, BOUND_KEYS, KEYS, STAGES, GROUPS, IN_TURN,
    )  # fmt: skip
    rooms = (qs, ks, vs)
    barriers = (q_ready, k_ready, k_free, v_ready, v_free, turns)
    given = (mask, bias, queries, keys, is_run, end)
    where = (first_row, head, sample)
    blocks = (begin + last * KEYS, count, checked_high, checked_low)
    # The first role is that of the warps that were here before, and gets what registers are left.
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (copy, (k, v, rooms, barriers, where, blocks, known)),
                (compute, (y, rooms, barriers, given, where, blocks, known, 0)),
            ],
            [4],
            [REGISTERS],
        )
    elif GROUPS == 2:
        gl.warp_specialize(
            [
                (copy, (k, v, rooms, barriers, where, blocks, known)),
                (compute, (y, rooms, barriers, given, where, blocks, known, 0)),
                (compute, (y, rooms, barriers, given, where, blocks, known, 1)),
            ],
            [4, 4],
            [REGISTERS, REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (copy, (k, v, rooms, barriers, where, blocks, known)),
                (compute, (y, rooms, barriers, given, where, blocks, known, 0)),
                (compute, (y, rooms, barriers, given, where, blocks, known, 1)),
                (compute, (y, rooms, barriers, given, where, blocks, known, 2)),
            ],
            [4, 4, 4],
            [REGISTERS, REGISTERS, REGISTERS],
        )
