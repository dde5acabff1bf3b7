"""Flash attention in Gluon, for Hopper: a warp that copies, and groups of warps that compute.

What `flash_attention` leaves to Triton is said here: where each value lies, which warps do what,
and when they wait. One warp copies blocks of keys and values into shared memory (TMA), and three
groups of four compute 64 queries each: while one computes the softmax of a block of keys, the
tensor cores have products of the others, and its own with the values of the block before (Shah,
Bikshandi, Zhang, Thakkar, Ramani and Dao, "FlashAttention-3", 2024).

Rooms are shared memory for STAGES blocks. Of each one barrier says that it is filled, and one that
all groups are done with it; a barrier's phase alternates between 0 and 1.
"""

# mypy: ignore-errors
# ruff: noqa: N803, N806

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

GROUP = gl.constexpr(64)
GROUPS = gl.constexpr(3)
#: As many blocks of keys and of values there is room for.
STAGES = gl.constexpr(2)


@gluon.jit
def flash_attention(q, k, v, y, keys, WIDTH: gl.constexpr, KEYS: gl.constexpr):
    """Write softmax(q k^T / sqrt(WIDTH)) v of some queries of a head of a sample.

    All four are maps of [batch, heads, rows, WIDTH]. What a box has beyond the last row is 0 when
    it is copied in, and is not copied out.
    """
    KEPT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, WIDTH], q.dtype)
    qs = gl.allocate_shared_memory(q.dtype, [GROUPS, GROUP, WIDTH], KEPT)
    ks = gl.allocate_shared_memory(q.dtype, [STAGES, KEYS, WIDTH], KEPT)
    vs = gl.allocate_shared_memory(q.dtype, [STAGES, KEYS, WIDTH], KEPT)
    q_ready = mbarrier.allocate_mbarrier()
    k_ready = mbarrier.allocate_mbarrier(batch=STAGES)
    k_free = mbarrier.allocate_mbarrier(batch=STAGES)
    v_ready = mbarrier.allocate_mbarrier(batch=STAGES)
    v_free = mbarrier.allocate_mbarrier(batch=STAGES)
    mbarrier.init(q_ready, GROUPS)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(i), 1)
        mbarrier.init(v_ready.index(i), 1)
        mbarrier.init(k_free.index(i), GROUPS)
        mbarrier.init(v_free.index(i), GROUPS)
    fence_async_shared()
    buffers = (qs, ks, vs)
    barriers = (q_ready, k_ready, k_free, v_ready, v_free)
    where = (gl.program_id(2), gl.program_id(1), gl.program_id(0) * GROUP * GROUPS)
    # Roles, warps of all but the first, and how many registers their threads have.
    gl.warp_specialize(
        [
            (compute, (y, buffers, barriers, where, keys, 0)),
            (compute, (y, buffers, barriers, where, keys, 1)),
            (compute, (y, buffers, barriers, where, keys, 2)),
            (copy, (q, k, v, buffers, barriers, where, keys)),
        ],
        [4, 4, 1],
        [160, 160, 24],
    )


@gluon.jit
def copy_box(rows, sample, head, row, buffer, ready):
    """Copy rows of a head into a buffer; `ready` completes when they are there."""
    mbarrier.expect(ready, rows.nbytes_per_cta)
    box = buffer.reinterpret(rows.dtype, rows.block_shape, rows.layout)
    tma.async_load(rows, [sample, head, row, 0], ready, box)


@gluon.jit
def copy(q, k, v, buffers, barriers, where, keys):
    """Copy the queries, and blocks of keys and values from the last one on."""
    qs, ks, vs = buffers
    q_ready, k_ready, k_free, v_ready, v_free = barriers
    sample, head, first_row = where
    KEYS: gl.constexpr = ks.shape[1]
    for part in gl.static_range(GROUPS):
        copy_box(q, sample, head, first_row + part * GROUP, qs.index(part), q_ready)
    count = gl.cdiv(keys, KEYS)
    for i in range(count):
        stage = i % STAGES
        # A barrier that nothing has happened to is taken for one after its phase 1.
        phase = ((i // STAGES) & 1) ^ 1
        row = (count - 1 - i) * KEYS
        mbarrier.wait(k_free.index(stage), phase)
        copy_box(k, sample, head, row, ks.index(stage), k_ready.index(stage))
        mbarrier.wait(v_free.index(stage), phase)
        copy_box(v, sample, head, row, vs.index(stage), v_ready.index(stage))


@gluon.jit
def compute(y, buffers, barriers, where, keys, PART: gl.constexpr):
    """Attention of the 64 queries of one group."""
    qs, ks, vs = buffers
    q_ready, k_ready, k_free, v_ready, v_free = barriers
    sample, head, first_row = where
    KEYS: gl.constexpr = ks.shape[1]
    WIDTH: gl.constexpr = ks.shape[2]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    RESULT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, RESULT, 2)
    q = qs.index(PART)
    largest = gl.full([GROUP], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    total = gl.zeros([GROUP], gl.float32, gl.SliceLayout(1, SCORES))
    result = gl.zeros([GROUP, WIDTH], gl.float32, RESULT)
    nothing = gl.zeros([GROUP, KEYS], gl.float32, SCORES)
    count = gl.cdiv(keys, KEYS)

    # The last block, which may end beyond the last key.
    mbarrier.wait(q_ready, 0)
    mbarrier.wait(k_ready.index(0), 0)
    product = warpgroup_mma(q, ks.index(0).permute((1, 0)), nothing, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=(product,))
    mbarrier.arrive(k_free.index(0))
    position = (count - 1) * KEYS + gl.arange(0, KEYS, gl.SliceLayout(0, SCORES))
    scores = gl.where((position < keys)[None, :], scores, float("-inf"))
    weights, largest, total, _ = soften(scores, largest, total, WIDTH)
    weights = gl.convert_layout(weights.to(q.dtype), WEIGHTS)

    for i in range(1, count):
        stage, before = (i % STAGES, (i - 1) % STAGES)
        mbarrier.wait(k_ready.index(stage), (i // STAGES) & 1)
        transposed = ks.index(stage).permute((1, 0))
        product = warpgroup_mma(q, transposed, nothing, use_acc=False, is_async=True)
        mbarrier.wait(v_ready.index(before), ((i - 1) // STAGES) & 1)
        sums = warpgroup_mma(weights, vs.index(before), result, is_async=True)
        scores = warpgroup_mma_wait(1, deps=(product,))
        mbarrier.arrive(k_free.index(stage))
        # Meanwhile the tensor cores have the product with the values.
        new, largest, total, faded = soften(scores, largest, total, WIDTH)
        result = warpgroup_mma_wait(0, deps=(sums,))
        mbarrier.arrive(v_free.index(before))
        result = result * gl.convert_layout(faded, gl.SliceLayout(1, RESULT))[:, None]
        weights = gl.convert_layout(new.to(q.dtype), WEIGHTS)

    before = (count - 1) % STAGES
    mbarrier.wait(v_ready.index(before), ((count - 1) // STAGES) & 1)
    sums = warpgroup_mma(weights, vs.index(before), result, is_async=True)
    result = warpgroup_mma_wait(0, deps=(sums,))
    result = result / gl.convert_layout(total, gl.SliceLayout(1, RESULT))[:, None]
    # The queries are not needed any more: from their buffer rows are copied out.
    q.store(result.to(q.dtype))
    fence_async_shared()
    box = q.reinterpret(y.dtype, y.block_shape, y.layout)
    tma.async_store(y, [sample, head, first_row + PART * GROUP, 0], box)
    tma.store_wait(0)


@gluon.jit
def soften(scores, largest, total, WIDTH: gl.constexpr):
    """Return a block's weights, the largest score and the sum so far, and what scales the rest."""
    # In base 2, which the hardware has.
    SCALE: gl.constexpr = 1.4426950408889634 * WIDTH**-0.5
    larger = gl.maximum(largest, gl.max(scores, 1) * SCALE)
    weights = gl.exp2(scores * SCALE - larger[:, None])
    faded = gl.exp2(largest - larger)
    return weights, larger, total * faded + gl.sum(weights, 1), faded
