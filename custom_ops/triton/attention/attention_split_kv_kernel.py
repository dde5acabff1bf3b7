"""Attention of few queries between parts of the keys; it stands after `attention_kernel`."""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def attention_part(
    q, k, v, mask, parts, tops, totals, queries, keys,
    HEADS: tl.constexpr, SHARED: tl.constexpr,
    WIDTH: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    V_WIDTH: tl.constexpr, V1: tl.constexpr, V2: tl.constexpr,
    Q_PITCH: tl.constexpr, Q_HEAD: tl.constexpr, Q_FIRST: tl.constexpr,
    K_PITCH: tl.constexpr, K_HEAD: tl.constexpr, K_FIRST: tl.constexpr,
    V_PITCH: tl.constexpr, V_HEAD: tl.constexpr, V_FIRST: tl.constexpr,
    SCALE: tl.constexpr, CAP: tl.constexpr, IS_CAUSAL: tl.constexpr, IS_LAST: tl.constexpr,
    WINDOW: tl.constexpr, MASK: tl.constexpr, FILL: tl.constexpr, MASK_BATCH: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Attention of few queries over a part of the keys, for all heads that share these.

    Args:
        parts: Sums of values, float32 [batch, heads of k, PARTS, ROWS, V1 + V2].
        tops: The highest score of each row of them, in base 2.
        totals: The sum of its weights. The others are as `attention` has them.
        PARTS: Of the keys.
        ROWS: SHARED for each query, and what there is not.
    """
    part = tl.program_id(0)
    shared = tl.program_id(1)
    sample = tl.program_id(2).to(tl.int64)
    row = tl.arange(0, ROWS)
    query = row // SHARED
    head = shared * SHARED + row % SHARED
    if Q_HEAD == 0:
        offsets = ((sample * HEADS + head) * queries + query) * WIDTH
        k += (sample * (HEADS // SHARED) + shared) * keys * WIDTH
        v += (sample * (HEADS // SHARED) + shared) * keys * V_WIDTH
    else:
        offsets = (sample * queries + query) * Q_PITCH + head * Q_HEAD + Q_FIRST
        k += sample * keys * K_PITCH + shared * K_HEAD + K_FIRST
        v += sample * keys * V_PITCH + shared * V_HEAD + V_FIRST
    if MASK != 0 and MASK_BATCH:
        mask += sample * keys
    position = query
    if IS_LAST:
        position = query + (keys - queries)
    is_row = (query < queries)[:, None]
    column = tl.arange(0, W1)[None, :]
    q1 = tl.load(q + offsets[:, None] + column, mask=is_row & (column < WIDTH), other=0.0)
    q2 = q1
    if W2 > 0:
        column = W1 + tl.arange(0, W2)[None, :]
        q2 = tl.load(q + offsets[:, None] + column, mask=is_row & (column < WIDTH), other=0.0)
    acc1 = tl.zeros((ROWS, V1), tl.float32)
    acc2 = tl.zeros((ROWS, V2 if V2 > 0 else 1), tl.float32)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    blocks = (keys + KEYS - 1) // KEYS
    low = blocks * part // PARTS * KEYS
    high = tl.minimum(keys, blocks * (part + 1) // PARTS * KEYS)
    acc1, acc2, top, total = attend(  # noqa: F821  of attention_kernel
        low, high, q1, q2, acc1, acc2, top, total, k, v, keys, mask, row, position, row, queries,
        KEYS, WIDTH, W1, W2, V_WIDTH, V1, V2, K_PITCH, V_PITCH,
        SCALE, CAP, IS_CAUSAL, WINDOW, MASK, FILL, False, False, True, True,
    )  # fmt: skip
    offset = ((sample * (HEADS // SHARED) + shared) * PARTS + part) * ROWS + row
    tl.store(tops + offset, top)
    tl.store(totals + offset, total)
    WIDE: tl.constexpr = V1 + V2
    tl.store(parts + offset[:, None] * WIDE + tl.arange(0, V1)[None, :], acc1)
    if V2 > 0:
        tl.store(parts + offset[:, None] * WIDE + V1 + tl.arange(0, V2)[None, :], acc2)


@triton.jit
def attention_join(
    parts, tops, totals, y, queries,
    HEADS: tl.constexpr, SHARED: tl.constexpr, V_WIDTH: tl.constexpr, V1: tl.constexpr,
    V2: tl.constexpr, Y_PITCH: tl.constexpr, Y_HEAD: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Put the parts of one row together, see `attention_part`; always in one order."""
    row = tl.program_id(0)
    shared = tl.program_id(1)
    sample = tl.program_id(2).to(tl.int64)
    query = row // SHARED
    head = shared * SHARED + row % SHARED
    first = (sample * (HEADS // SHARED) + shared) * PARTS * ROWS + row
    offset = first + tl.arange(0, PARTS) * ROWS
    top = tl.load(tops + offset)
    highest = tl.max(top, 0)
    weight = tl.exp2(top - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(tl.load(totals + offset) * weight, 0)
    share = weight / tl.where(total == 0.0, 1.0, total)
    if Y_HEAD == 0:
        y += ((sample * HEADS + head) * queries + query) * V_WIDTH
    else:
        y += (sample * queries + query) * Y_PITCH + head * Y_HEAD
    WIDE: tl.constexpr = V1 + V2
    column = tl.arange(0, V1)
    found = tl.load(parts + offset[:, None] * WIDE + column[None, :])
    made = tl.sum(found * share[:, None], 0)
    tl.store(y + column, made.to(y.dtype.element_ty), mask=column < V_WIDTH)
    if V2 > 0:
        column = V1 + tl.arange(0, V2)
        found = tl.load(parts + offset[:, None] * WIDE + column[None, :])
        made = tl.sum(found * share[:, None], 0)
        tl.store(y + column, made.to(y.dtype.element_ty), mask=column < V_WIDTH)
