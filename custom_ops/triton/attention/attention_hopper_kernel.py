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
def mask_room(ms, i, known: gl.constexpr, PART: gl.constexpr):
    """Return where the mask of a block lies: of a group's rows, or of all rows."""
    if known.by_row:
        return ms.index(i % MASK_STAGES * known.groups + PART)
    else:
        return ms.index(i % MASK_STAGES)


@gluon.jit
def take_in(
    low, high, state, q, buffers, barriers, first, position, seen,
    known: gl.constexpr, CHECKED: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Take in blocks of keys: the scores of turn i beside the product with the values of i - 1.

    CHECKED: Not all of them are seen whole by all queries.
    """
    p, acc, top, total = state
    ks, vs = buffers
    k_ready, k_free, v_ready, v_free, m_ready, m_free, turns = barriers
    ms, end = seen
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
        if known.mask != 0:
            mbarrier.wait(m_ready.index(i % MASK_STAGES), (i // MASK_STAGES) & 1)
        mask = mask_room(ms, i, known, PART)
        weights, top, total, faded = soften(
            scores, top, total, start, position, (mask, end), known, CHECKED
        )
        if known.mask != 0:
            mbarrier.arrive(m_free.index(i % MASK_STAGES))
        acc = warpgroup_mma_wait(0, deps=(summed,))
        mbarrier.arrive(v_free.index(before))
        acc = acc * gl.convert_layout(faded, gl.SliceLayout(1, RESULT))[:, None]
        p = gl.convert_layout(weights.to(q.dtype), gl.DotOperandLayout(0, RESULT, 2))
    return p, acc, top, total


@gluon.jit
def sweep(
    q, buffers, barriers, blocks, position, seen,
    known: gl.constexpr, IS_RUN: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Take in all blocks of keys, from the last one on, but for the values of the first.

    IS_RUN: Keys after the last block may not be seen.
    """
    first, count, checked_high, checked_low = blocks
    ks, vs = buffers
    k_ready, k_free, _, _, m_ready, m_free, turns = barriers
    ms, end = seen
    SCORES: gl.constexpr = scores_layout(known)
    RESULT: gl.constexpr = result_layout(vs.shape[2])
    IS_CUT: gl.constexpr = known.bound_keys and (known.mask == 0 or known.by_row)
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
    if known.mask != 0:
        mbarrier.wait(m_ready.index(0), 0)
    weights, top, total, _ = soften(
        scores, top, total, first, position, (mask_room(ms, 0, known, PART), end), known,
        IS_RUN or IS_CUT or known.is_causal,
    )  # fmt: skip
    if known.mask != 0:
        mbarrier.arrive(m_free.index(0))
    p = gl.convert_layout(weights.to(q.dtype), gl.DotOperandLayout(0, RESULT, 2))
    state = (p, acc, top, total)
    # Without causality the last block is the only one that ends beyond what is seen.
    if known.is_causal:
        state = take_in(
            1, checked_high, state, q, buffers, barriers, first, position, seen, known, True, PART
        )
    state = take_in(
        checked_high, checked_low, state, q, buffers, barriers, first, position, seen, known,
        False, PART,
    )  # fmt: skip
    if known.window > 0:
        state = take_in(
            checked_low,
            count,
            state,
            q,
            buffers,
            barriers,
            first,
            position,
            seen,
            known,
            True,
            PART,
        )
    p, acc, _, total = state
    return p, acc, total


@gluon.jit
def compute(arguments, known: gl.constexpr, PART: gl.constexpr):
    """Attention of the queries of one group of warps."""
    y, buffers, barriers, given, where, blocks = arguments
    qs, ks, vs, ms = buffers
    q_ready, k_ready, k_free, v_ready, v_free, m_ready, m_free, turns = barriers
    bias, queries, keys, is_run, end = given
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
    seen = (ms, end)
    buffers = (ks, vs)
    barriers = (k_ready, k_free, v_ready, v_free, m_ready, m_free, turns)
    MAY_BE_RUN: gl.constexpr = may_be_run(known)
    if MAY_BE_RUN:
        if is_run:
            p, acc, total = sweep(
                q, buffers, barriers, blocks, position, seen, without_mask(known), True, PART
            )
        else:
            p, acc, total = sweep(q, buffers, barriers, blocks, position, seen, known, False, PART)
    else:
        p, acc, total = sweep(q, buffers, barriers, blocks, position, seen, known, False, PART)
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
    if known.inverse == 1.0:
        made = q.reinterpret(q.dtype, [GROUP, V], vs.layout)
        made.store(acc.to(q.dtype))
    else:
        # Eight bits take the first half of the room.
        NARROW: gl.constexpr = gl.NVMMASharedLayout.get_default_for([GROUP, V], y.dtype)
        made = q.reinterpret(y.dtype, [2, GROUP, V], NARROW).index(0)
        made.store((acc * known.inverse).to(y.dtype))
    fence_async_shared()
    box = made.reinterpret(y.dtype, [1, 1, GROUP, V], y.layout)
    tma.async_store(y, [sample, head, first_row, 0], box)
    tma.store_wait(0)
