"""GroupQueryAttention over caches on Hopper: where the roles of `attention_hopper_kernel` begin.

It stands after `attention_hopper_entry_kernel`. Keys and values come from caches with room for
more rows than a sample has, of a number that is read on the device.
"""
# mypy: ignore-errors
# ruff: noqa: F821  names of the modules before it

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier


@gluon.jit
def store_known(rows, first, known_rows, buffer, WIDTH: gl.constexpr):
    """Store a block of rows of a head to shared memory: zeros for those that are not known.

    What lies behind them in a cache may be no number, whose product with a weight of 0 is none.
    """
    KEYS: gl.constexpr = buffer.shape[0]
    W: gl.constexpr = buffer.shape[1]
    PLAIN: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // W, W // 8], [4, 1], [1, 0])
    row = first + gl.arange(0, KEYS, gl.SliceLayout(1, PLAIN))
    column = gl.arange(0, W, gl.SliceLayout(0, PLAIN))
    is_present = (row < known_rows)[:, None] & (column < WIDTH)[None, :]
    buffer.store(
        gl.load(rows + row[:, None] * WIDTH + column[None, :], mask=is_present, other=0.0)
    )
    fence_async_shared()


@gluon.jit
def grouped_attention(
    q, k, v, y, values, lengths, queries, past_elements, rows,
    HEADS: gl.constexpr, SHARED: gl.constexpr, WIDTH: gl.constexpr, SCALE: gl.constexpr,
    CAP: gl.constexpr, WINDOW: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
    GROUPS: gl.constexpr, IN_TURN: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Attention of GROUPS * 64 new rows of one head of one sample over its cache.

    Args:
        q: Map of [batch, heads, queries, WIDTH]: what `grouped_append` writes.
        k: Map of [batch, heads of k, rows, WIDTH]; v alike.
        y: Map of [batch, heads, queries, WIDTH]. It may lie where q lies.
        values: [batch, heads of k, rows, WIDTH], what v is a map of.
        lengths: int32 [batch], keys of each sample less one.
        queries: New rows.
        past_elements: Of a head of the caches before.
        rows: Of a cache.
        HEADS: Of q. The others are as `attention` has them.
    """
    QUERIES: gl.constexpr = GROUP * GROUPS
    # Later queries see more keys: those that take longest begin first, of all heads.
    head = gl.program_id(0)
    block = gl.num_programs(1) - 1 - gl.program_id(1)
    sample = gl.program_id(2)
    first_row = block * QUERIES
    length = gl.minimum(gl.load(lengths + sample) + 1, rows)
    keys = gl.maximum(length, 0)
    before = gl.minimum(gl.maximum(length - queries, 0), past_elements // WIDTH)
    first_position = before + first_row
    high = gl.minimum(keys, first_position + QUERIES)
    plain_high = gl.minimum(keys, first_position + 1)
    low = keys * 0
    plain_low = keys * 0
    if WINDOW > 0:
        low = gl.maximum(0, first_position - WINDOW + 1)
        plain_low = gl.maximum(0, first_position + QUERIES - WINDOW)
    dtype: gl.constexpr = q.dtype
    W: gl.constexpr = q.block_shape[3]
    ROOM: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, W], dtype)
    qs = gl.allocate_shared_memory(dtype, [GROUPS, GROUP, W], ROOM)
    ks = gl.allocate_shared_memory(dtype, [STAGES, KEYS, W], ROOM)
    vs = gl.allocate_shared_memory(dtype, [STAGES, KEYS, W], ROOM)
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
    last = gl.maximum(high - 1, 0) // KEYS
    shared = head // SHARED
    for part in gl.static_range(GROUPS):
        copy_box(q, sample, head, first_row + part * GROUP, 0, q_ready, qs.index(part))
    copy_box(k, sample, shared, last * KEYS, 0, k_ready.index(0), ks.index(0))
    # The last block alone may end behind the keys: blocks are taken in from it on.
    if (last + 1) * KEYS > keys:
        group = (sample * (HEADS // SHARED) + shared).to(gl.int64)
        store_known(values + group * rows * WIDTH, last * KEYS, keys, vs.index(0), WIDTH)
        mbarrier.arrive(v_ready.index(0))
    else:
        copy_box(v, sample, shared, last * KEYS, 0, v_ready.index(0), vs.index(0))
    count = gl.maximum(last - low // KEYS + 1, 1)
    # Turns up to checked_high, and from checked_low on, look at positions.
    checked_high = gl.minimum(gl.maximum(last - plain_high // KEYS + 1, 1), count)
    checked_low = count
    if WINDOW > 0:
        checked_low = last + 1 - (plain_low + KEYS - 1) // KEYS
        checked_low = gl.minimum(gl.maximum(checked_low, checked_high), count)
    known: gl.constexpr = known_of(
        SHARED, WIDTH, WIDTH, 0, 0, SCALE, CAP, True, True, WINDOW, 0, False, False, False, 0.0,
        False, True, KEYS, STAGES, GROUPS, IN_TURN, 1.0,
    )  # fmt: skip
    buffers = (qs, ks, vs, ks)
    barriers = (q_ready, k_ready, k_free, v_ready, v_free, turns, turns, turns)
    # Row i has position i + keys less the number of rows that is given.
    given = (lengths, keys - before, keys, keys < 0, keys)
    where = (first_row, head, sample)
    blocks = (last * KEYS, count, checked_high, checked_low)
    given = (y, buffers, barriers, given, where, blocks)
    read = (k, v, lengths, buffers, barriers, where, blocks, keys, keys < 0)
    copying_last(given, read, known, REGISTERS)
