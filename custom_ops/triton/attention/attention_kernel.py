"""softmax(scale Q K^T + mask) V of a block of queries of one head, keys in blocks.

The softmax grows with the keys (Milakov and Gimelshein, "Online normalizer calculation for
softmax", 2018), and is divided by its sum at the end (Dao, "FlashAttention-2", 2023). Keys that no
query of the block sees are not read: beyond causality, outside of the window, and at either end of
what a mask of keys leaves. Between them lie blocks that all queries see whole, for which no
condition on places is computed. Scores are kept in base 2, so that an exponential is one
instruction.

Widths that are no power of two are taken as two: 96 as 64 and 32.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

#: A key whose mask is not above it is lost beside one that has none: its share is below 2^-149
#: unless scores differ by thousands.
LOST: tl.constexpr = tl.constexpr(-5.0e3)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
#: Keys of a mask that are looked at together.
SCAN: tl.constexpr = tl.constexpr(1024)


@triton.jit
def load_rows(base, rows, limit, FIRST, COLUMNS, WIDTH, PITCH, BOUND):
    """Load columns of rows; what lies beyond the last row (BOUND) or column is 0."""
    columns = FIRST + tl.arange(0, COLUMNS)
    offsets = base + rows[:, None] * PITCH + columns[None, :]
    IS_WIDER: tl.constexpr = FIRST + COLUMNS > WIDTH
    if BOUND and IS_WIDER:
        is_present = (rows[:, None] < limit) & (columns[None, :] < WIDTH)
        return tl.load(offsets, mask=is_present, other=0.0)
    if BOUND:
        return tl.load(offsets, mask=rows[:, None] < limit, other=0.0)
    if IS_WIDER:
        return tl.load(offsets, mask=columns[None, :] < WIDTH, other=0.0)
    return tl.load(offsets)


@triton.jit
def kept_keys(mask, keys, IS_CHOICE):
    """Return where the keys that a mask keeps begin and end; all where it keeps none."""
    first = keys
    last = 0
    for start in range(0, keys, SCAN):
        key_index = start + tl.arange(0, SCAN)
        if IS_CHOICE:
            is_kept = tl.load(mask + key_index, mask=key_index < keys, other=0) != 0
        else:
            value = tl.load(mask + key_index, mask=key_index < keys, other=LOST).to(tl.float32)
            is_kept = (value > LOST) | (value != value)
        first = tl.minimum(first, tl.min(tl.where(is_kept, key_index, keys)))
        last = tl.maximum(last, tl.max(tl.where(is_kept, key_index + 1, 0)))
    if last == 0:
        first = 0
        last = keys
    return first, last


@triton.jit
def bias_of(added, MASK, FILL):
    """Return what a mask adds to scores in base 2."""
    if MASK == 1:
        return tl.where(added != 0, 0.0, FILL * LOG2E)
    return added.to(tl.float32) * LOG2E


@triton.jit
def attend_block(
    start, q1, q2, acc1, acc2, top, total, k, v, keys, mask, mask_row, position, rows, queries,
    KEYS, WIDTH, W1, W2, V_WIDTH, V1, V2, K_PITCH, V_PITCH,
    SCALE, CAP, IS_CAUSAL, WINDOW, MASK, FILL, MASK_ROWS, BOUND_ROWS, BOUND, CHECKED,
):  # fmt: skip
    """Take in a block of keys. CHECKED: not all of it is seen by all queries."""
    key_index = start + tl.arange(0, KEYS)
    scores = tl.dot(q1, tl.trans(load_rows(k, key_index, keys, 0, W1, WIDTH, K_PITCH, BOUND)))
    if W2 > 0:
        part = load_rows(k, key_index, keys, W1, W2, WIDTH, K_PITCH, BOUND)
        scores = tl.dot(q2, tl.trans(part), scores)
    FACTOR: tl.constexpr = SCALE * LOG2E
    factor = FACTOR
    if CAP > 0.0:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1), of numbers that float32 has no end for
        bent = tl.exp2(scores * (2.0 * FACTOR / CAP)) + 1.0
        scores = (CAP * LOG2E) - (2.0 * CAP * LOG2E) / bent
        factor = 1.0
    elif MASK != 0:
        scores = scores * FACTOR
        factor = 1.0
    if MASK != 0 and MASK_ROWS:
        at = mask + mask_row[:, None] + key_index[None, :]
        if BOUND and BOUND_ROWS:
            is_present = (rows[:, None] < queries) & (key_index[None, :] < keys)
            added = tl.load(at, mask=is_present, other=0)
        elif BOUND:
            added = tl.load(at, mask=key_index[None, :] < keys, other=0)
        elif BOUND_ROWS:
            added = tl.load(at, mask=rows[:, None] < queries, other=0)
        else:
            added = tl.load(at)
        scores += bias_of(added, MASK, FILL)
    elif MASK != 0:
        # What lies beyond the last key is not seen either, and needs no look of its own.
        if BOUND:
            bias = bias_of(tl.load(mask + key_index, mask=key_index < keys, other=0), MASK, FILL)
            bias = tl.where(key_index < keys, bias, float("-inf"))
        else:
            bias = bias_of(tl.load(mask + key_index), MASK, FILL)
        scores += bias[None, :]
    if CHECKED:
        is_seen = key_index[None, :] < keys
        if IS_CAUSAL:
            is_seen = is_seen & (key_index[None, :] <= position[:, None])
        if WINDOW > 0:
            is_seen = is_seen & (key_index[None, :] > position[:, None] - WINDOW)
        scores = tl.where(is_seen, scores, float("-inf"))
    highest = tl.maximum(top, tl.max(scores, 1) * factor)
    shift = highest
    if CHECKED or MASK != 0:
        shift = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2(scores * factor - shift[:, None])
    faded = tl.exp2(top - shift)
    total = total * faded + tl.sum(weights, 1)
    acc1 = acc1 * faded[:, None]
    part = weights.to(q1.dtype)
    acc1 = tl.dot(part, load_rows(v, key_index, keys, 0, V1, V_WIDTH, V_PITCH, BOUND), acc1)
    if V2 > 0:
        acc2 = acc2 * faded[:, None]
        acc2 = tl.dot(part, load_rows(v, key_index, keys, V1, V2, V_WIDTH, V_PITCH, BOUND), acc2)
    return acc1, acc2, highest, total


@triton.jit
def attend(
    low, high, q1, q2, acc1, acc2, top, total, k, v, keys, mask, mask_row, position, rows, queries,
    KEYS, WIDTH, W1, W2, V_WIDTH, V1, V2, K_PITCH, V_PITCH,
    SCALE, CAP, IS_CAUSAL, WINDOW, MASK, FILL, MASK_ROWS, BOUND_ROWS, BOUND, CHECKED,
):  # fmt: skip
    """Take in all blocks of keys from `low` on, a multiple of KEYS, that begin below `high`."""
    for start in tl.range(low, high, KEYS):
        acc1, acc2, top, total = attend_block(
            start, q1, q2, acc1, acc2, top, total, k, v, keys, mask, mask_row, position, rows,
            queries, KEYS, WIDTH, W1, W2, V_WIDTH, V1, V2, K_PITCH, V_PITCH,
            SCALE, CAP, IS_CAUSAL, WINDOW, MASK, FILL, MASK_ROWS, BOUND_ROWS, BOUND, CHECKED,
        )  # fmt: skip
    return acc1, acc2, top, total


@triton.jit
def attention(
    q, k, v, mask, bias, y, queries, keys,
    HEADS: tl.constexpr, SHARED: tl.constexpr,
    WIDTH: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    V_WIDTH: tl.constexpr, V1: tl.constexpr, V2: tl.constexpr,
    Q_PITCH: tl.constexpr, Q_HEAD: tl.constexpr, Q_FIRST: tl.constexpr,
    K_PITCH: tl.constexpr, K_HEAD: tl.constexpr, K_FIRST: tl.constexpr,
    V_PITCH: tl.constexpr, V_HEAD: tl.constexpr, V_FIRST: tl.constexpr,
    Y_PITCH: tl.constexpr, Y_HEAD: tl.constexpr,
    SCALE: tl.constexpr, CAP: tl.constexpr, IS_CAUSAL: tl.constexpr, IS_LAST: tl.constexpr,
    WINDOW: tl.constexpr,
    MASK: tl.constexpr, FILL: tl.constexpr, MASK_ROWS: tl.constexpr, MASK_BATCH: tl.constexpr,
    MASK_HEADS: tl.constexpr, HAS_BIAS: tl.constexpr, INVERSE: tl.constexpr,
    BOUND_QUERIES: tl.constexpr, BOUND_KEYS: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Attention of one block of queries of one head of one sample.

    Args:
        q, k, v, y: [batch, rows, columns], a head every *_HEAD columns from *_FIRST on, a row
            every *_PITCH elements; or, *_HEAD being 0, [batch, heads, rows, width].
        mask: Added to the scores (MASK 2), or 0 where FILL is added (MASK 1); one row a query
            (MASK_ROWS) or one for all, by sample (MASK_BATCH), by head (MASK_HEADS).
        bias: [columns], added to each row of q and v, and to k, where it makes no difference: a
            query's scores move by one number (HAS_BIAS).
        queries: Rows of q.
        keys: Rows of k.
        INVERSE: Of the number that the result is divided by, which y has in eight bits; else 1.
        HEADS: Of q.
        SHARED: Heads of q that share one of k.
        WIDTH: Of a head of q and k, W1 + W2 not less; V_WIDTH alike of v and y.
        SCALE: Of the scores, positive.
        CAP: The scores' bound, 0 for none.
        IS_CAUSAL: Whether query i sees keys up to i, or, IS_LAST, the last query all of them.
        WINDOW: How many of those a query sees, 0 for all.
        BOUND_QUERIES, BOUND_KEYS: Whether the last block may be less than whole.
        QUERIES, KEYS: Of a block.
    """
    # Later queries see more keys: those that take longest begin first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    sample = tl.program_id(2).to(tl.int64)
    rows = block * QUERIES + tl.arange(0, QUERIES)
    shared = head // SHARED
    if Q_HEAD == 0:
        q += (sample * HEADS + head) * queries * WIDTH
        y += (sample * HEADS + head) * queries * V_WIDTH
        k += (sample * (HEADS // SHARED) + shared) * keys * WIDTH
        v += (sample * (HEADS // SHARED) + shared) * keys * V_WIDTH
    else:
        q += sample * queries * Q_PITCH + head * Q_HEAD + Q_FIRST
        k += sample * keys * K_PITCH + shared * K_HEAD + K_FIRST
        v += sample * keys * V_PITCH + shared * V_HEAD + V_FIRST
        y += sample * queries * Y_PITCH + head * Y_HEAD
    position = rows
    if IS_LAST:
        position = rows + (keys - queries)
    first_position = tl.min(position)
    low = 0
    high = keys
    plain_low = 0
    plain_high = keys // KEYS * KEYS
    if IS_CAUSAL:
        high = tl.minimum(high, first_position + QUERIES)
        plain_high = tl.minimum(plain_high, (first_position + 1) // KEYS * KEYS)
    if WINDOW > 0:
        low = tl.maximum(0, first_position - WINDOW + 1) // KEYS * KEYS
        last_low = tl.maximum(0, first_position + QUERIES - WINDOW)
        plain_low = (last_low + KEYS - 1) // KEYS * KEYS
    mask_row = rows * 0
    if MASK != 0:
        lines = 1
        if MASK_ROWS:
            lines = queries
            mask_row = rows * keys
        heads = HEADS if MASK_HEADS else 1
        if MASK_BATCH:
            mask += sample * heads * lines * keys
        if MASK_HEADS:
            mask += head.to(tl.int64) * lines * keys
        if not MASK_ROWS:
            # A query that causality leaves nothing but lost keys is to have their mean.
            NEVER: tl.constexpr = (MASK == 1) and FILL < -3.4e38
            if MASK == 2 or FILL <= LOST:
                first_kept, last_kept = kept_keys(mask, keys, MASK == 1)
                if NEVER or not IS_CAUSAL:
                    low = tl.maximum(low, first_kept // KEYS * KEYS)
                if NEVER or WINDOW == 0:
                    high = tl.minimum(high, last_kept)
            if not IS_CAUSAL:
                plain_high = (high + KEYS - 1) // KEYS * KEYS
    plain_low = tl.minimum(
        tl.maximum(plain_low, low), tl.maximum(low, (high + KEYS - 1) // KEYS * KEYS)
    )
    plain_high = tl.maximum(plain_high, plain_low)

    q1 = load_rows(q, rows, queries, 0, W1, WIDTH, Q_PITCH, BOUND_QUERIES)
    q2 = q1
    if W2 > 0:
        q2 = load_rows(q, rows, queries, W1, W2, WIDTH, Q_PITCH, BOUND_QUERIES)
    if HAS_BIAS:
        first = bias + head * Q_HEAD + Q_FIRST
        q1 = biased(q1, first, 0, W1, WIDTH).to(q.dtype.element_ty)
        if W2 > 0:
            q2 = biased(q2, first, W1, W2, WIDTH).to(q.dtype.element_ty)
    acc1 = tl.zeros((QUERIES, V1), tl.float32)
    acc2 = tl.zeros((QUERIES, V2 if V2 > 0 else 1), tl.float32)
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    # A mask of keys sees to what lies beyond the last one.
    KEY_MASK: tl.constexpr = (MASK != 0) and not MASK_ROWS
    CUT: tl.constexpr = KEY_MASK and BOUND_KEYS
    if WINDOW > 0:
        acc1, acc2, top, total = attend(
            low, tl.minimum(plain_low, high), q1, q2, acc1, acc2, top, total,
            k, v, keys, mask, mask_row, position, rows, queries,
            KEYS, WIDTH, W1, W2, V_WIDTH, V1, V2, K_PITCH, V_PITCH,
            SCALE, CAP, IS_CAUSAL, WINDOW, MASK, FILL, MASK_ROWS, BOUND_QUERIES, BOUND_KEYS, True,
        )  # fmt: skip
    acc1, acc2, top, total = attend(
        plain_low, plain_high, q1, q2, acc1, acc2, top, total,
        k, v, keys, mask, mask_row, position, rows, queries,
        KEYS, WIDTH, W1, W2, V_WIDTH, V1, V2, K_PITCH, V_PITCH,
        SCALE, CAP, IS_CAUSAL, WINDOW, MASK, FILL, MASK_ROWS, BOUND_QUERIES, CUT, False,
    )  # fmt: skip
    if IS_CAUSAL or (BOUND_KEYS and not KEY_MASK):
        acc1, acc2, top, total = attend(
            plain_high, high, q1, q2, acc1, acc2, top, total,
            k, v, keys, mask, mask_row, position, rows, queries,
            KEYS, WIDTH, W1, W2, V_WIDTH, V1, V2, K_PITCH, V_PITCH,
            SCALE, CAP, IS_CAUSAL, WINDOW, MASK, FILL, MASK_ROWS, BOUND_QUERIES, BOUND_KEYS, True,
        )  # fmt: skip
    # A query that sees no key gets 0.
    share = (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]
    acc1 *= share
    acc2 *= share
    if HAS_BIAS:
        first = bias + shared * V_HEAD + V_FIRST
        acc1 = biased(acc1, first, 0, V1, V_WIDTH)
        if V2 > 0:
            acc2 = biased(acc2, first, V1, V2, V_WIDTH)
    if INVERSE != 1.0:
        acc1 *= INVERSE
        acc2 *= INVERSE
    store_rows(y, acc1, rows, queries, 0, V1, V_WIDTH, Y_PITCH, BOUND_QUERIES)
    if V2 > 0:
        store_rows(y, acc2, rows, queries, V1, V2, V_WIDTH, Y_PITCH, BOUND_QUERIES)


@triton.jit
def biased(tile, bias, FIRST, COLUMNS, WIDTH):
    """Add a row to all rows, in float32."""
    columns = FIRST + tl.arange(0, COLUMNS)
    return tile.to(tl.float32) + tl.load(bias + columns, mask=columns < WIDTH, other=0.0)[None, :]


@triton.jit
def store_rows(base, tile, rows, limit, FIRST, COLUMNS, WIDTH, PITCH, BOUND):
    """Store what `load_rows` would load."""
    columns = FIRST + tl.arange(0, COLUMNS)
    offsets = base + rows[:, None] * PITCH + columns[None, :]
    tile = tile.to(base.dtype.element_ty)
    IS_WIDER: tl.constexpr = FIRST + COLUMNS > WIDTH
    if BOUND and IS_WIDER:
        tl.store(offsets, tile, mask=(rows[:, None] < limit) & (columns[None, :] < WIDTH))
    elif BOUND:
        tl.store(offsets, tile, mask=rows[:, None] < limit)
    elif IS_WIDER:
        tl.store(offsets, tile, mask=columns[None, :] < WIDTH)
    else:
        tl.store(offsets, tile)
