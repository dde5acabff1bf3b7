"""Attention of few queries whose keys are appended to a cache; it stands after `attention_kernel`
and `attention_split_kernel`, whose `attention_join` puts the parts together.

A block has a part of the keys of one head. What it reads of the old cache it writes to the new one
as it goes, unless both lie in the same memory: then only the new rows are written, and blocks of
keys that a mask leaves out are not read at all.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def kept_range(mask, keys, LOOK):
    """Return where the keys that a condition keeps begin and end, and how many it keeps."""
    first = keys
    last = 0
    count = 0
    for start in tl.range(0, keys, LOOK):
        key_index = start + tl.arange(0, LOOK)
        is_kept = tl.load(mask + key_index, mask=key_index < keys, other=0) != 0
        first = tl.minimum(first, tl.min(tl.where(is_kept, key_index, keys)))
        last = tl.maximum(last, tl.max(tl.where(is_kept, key_index + 1, 0)))
        count += tl.sum(is_kept.to(tl.int32))
    return first, last, count


@triton.jit
def has_effect(mask, low, high, MASK):
    """Say whether a mask moves any score between `low` and `high`."""
    count = 0
    for start in tl.range(low, high, SCAN):  # noqa: F821  of attention_kernel
        key_index = start + tl.arange(0, SCAN)  # noqa: F821
        added = tl.load(mask + key_index, mask=key_index < high, other=1 if MASK == 1 else 0)
        is_moved = added == 0 if MASK == 1 else added != 0
        count += tl.sum(is_moved.to(tl.int32))
    return count > 0


@triton.jit
def take_in(
    q, k, v, acc, top, total, key_index, keys, mask, is_read, kept, position,
    SCALE, CAP, IS_CAUSAL, WINDOW, MASK, FILL, CHECKED,
):  # fmt: skip
    """Take in a block of keys, [KEYS, width], and of values.

    Args:
        key_index: Of the keys.
        is_read: Whether the mask says more than `kept`, where the keys that it keeps begin and
            end: a load that waits for nothing costs as much as the rest of a block.
        CHECKED: Whether not all of it is seen by all queries.
    """
    scores = tl.dot(q, tl.trans(k)) * SCALE
    if CAP > 0.0:
        bent = tl.exp2(scores * (2.0 * LOG2E / CAP)) + 1.0  # noqa: F821  of attention_kernel
        scores = CAP - 2.0 * CAP / bent
    scores *= LOG2E  # noqa: F821
    if MASK != 0:
        added = tl.load(
            mask + key_index, mask=(key_index < keys) & is_read, other=1 if MASK == 1 else 0
        )
        scores += bias_of(added, MASK, FILL)[None, :]  # noqa: F821
        is_kept = (key_index >= kept[0]) & (key_index < kept[1])
        scores = tl.where(is_kept[None, :], scores, float("-inf"))
    if CHECKED:
        is_seen = (key_index < keys)[None, :]
        if IS_CAUSAL:
            is_seen = is_seen & (key_index[None, :] <= position[:, None])
        if WINDOW > 0:
            is_seen = is_seen & (key_index[None, :] > position[:, None] - WINDOW)
        scores = tl.where(is_seen, scores, float("-inf"))
    highest = tl.maximum(top, tl.max(scores, 1))
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2(scores - shift[:, None])
    faded = tl.exp2(top - shift)
    total = total * faded + tl.sum(weights, 1)
    acc = tl.dot(weights.to(q.dtype), v, acc * faded[:, None])
    return acc, highest, total


@triton.jit
def append_part(
    q, past_k, past_v, new_k, new_v, mask, at, k_out, v_out, parts, tops, totals,
    queries, past, added,
    HEADS: tl.constexpr, SHARED: tl.constexpr,
    WIDTH: tl.constexpr, W: tl.constexpr, V_WIDTH: tl.constexpr, V: tl.constexpr,
    Q_PITCH: tl.constexpr, Q_HEAD: tl.constexpr, Q_FIRST: tl.constexpr,
    K_PITCH: tl.constexpr, K_HEAD: tl.constexpr, K_FIRST: tl.constexpr,
    V_PITCH: tl.constexpr, V_HEAD: tl.constexpr, V_FIRST: tl.constexpr,
    SCALE: tl.constexpr, CAP: tl.constexpr, IS_CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    MASK: tl.constexpr, FILL: tl.constexpr, MASK_BATCH: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, LOOK: tl.constexpr,
):  # fmt: skip
    """Attention of few queries over a part of the keys, the new ones among them.

    Args:
        q: As `attention_part` has it.
        past_k: [batch, heads of k, past, WIDTH]; past_v alike.
        new_k: As q, `added` rows of the heads of k; new_v alike.
        mask: [keys], or, MASK_BATCH, [batch, keys].
        at: Where the first new row goes, [1], counted from the end if negative; None: after the
            past.
        k_out: [batch, heads of k, keys, WIDTH]; v_out alike. As many keys as past ones if there
            is an `at`, else `added` more.
        parts: As `attention_part` has them, tops and totals as well.
        W: A power of two, not less than WIDTH; V alike.
        IS_CAUSAL: Whether a query sees keys up to its own row: the last one sees the last new one.
        LOOK: Keys of a condition that are looked at together.
    """
    part = tl.program_id(0)
    shared = tl.program_id(1)
    sample = tl.program_id(2).to(tl.int64)
    row = tl.arange(0, ROWS)
    query = row // SHARED
    head = shared * SHARED + row % SHARED
    group = sample * (HEADS // SHARED) + shared
    if Q_HEAD == 0:
        offsets = ((sample * HEADS + head) * queries + query) * WIDTH
    else:
        offsets = (sample * queries + query) * Q_PITCH + head * Q_HEAD + Q_FIRST
    if K_HEAD == 0:
        new_k += group * added * WIDTH
        new_v += group * added * V_WIDTH
    else:
        new_k += sample * added * K_PITCH + shared * K_HEAD + K_FIRST
        new_v += sample * added * V_PITCH + shared * V_HEAD + V_FIRST
    keys = past
    if at is None:
        first = past
        keys = past + added
    else:
        first = tl.load(at).to(tl.int32)
        first = tl.where(first < 0, first + keys, first)
    past_k += group * past * WIDTH
    past_v += group * past * V_WIDTH
    k_out += group * keys * WIDTH
    v_out += group * keys * V_WIDTH
    is_moved = (past_k.to(tl.int64) != k_out.to(tl.int64)) | (
        past_v.to(tl.int64) != v_out.to(tl.int64)
    )
    if MASK != 0 and MASK_BATCH:
        mask += sample * keys
    position = query + first + (added - queries)
    is_row = (query < queries)[:, None]
    column = tl.arange(0, W)[None, :]
    v_column = tl.arange(0, V)[None, :]
    is_column = column < WIDTH
    is_v_column = v_column < V_WIDTH
    rows = tl.load(q + offsets[:, None] + column, mask=is_row & is_column, other=0.0)
    acc = tl.zeros((ROWS, V), tl.float32)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    begin = 0
    end = keys
    kept_first = 0
    kept_last = keys
    is_read = MASK != 0
    # Keys that get a number, however low, still count where all others get it, too.
    SKIPS: tl.constexpr = (MASK == 1) and FILL < -3.4e38 and not IS_CAUSAL
    if not is_moved:
        if IS_CAUSAL:
            end = tl.minimum(end, first + added)
        if SKIPS:
            kept_first, kept_last, count = kept_range(mask, keys, LOOK)
            is_read = count < kept_last - kept_first
            # The new rows are written, whether a query sees them or not.
            begin = tl.minimum(kept_first, first)
            end = tl.minimum(tl.maximum(kept_last, first + added), keys)
    begin = begin // KEYS
    blocks = (end + KEYS - 1) // KEYS - begin
    low = (begin + blocks * part // PARTS) * KEYS
    high = tl.minimum(end, (begin + blocks * (part + 1) // PARTS) * KEYS)
    if MASK != 0:  # known before, and what follows is not  # noqa: SIM102
        if is_moved or not SKIPS:
            is_read = has_effect(mask, low, high, MASK)
    plain = tl.maximum(tl.minimum(high, first) // KEYS * KEYS, low)
    kept = (kept_first, kept_last)
    for start in tl.range(low, plain, KEYS):
        key_index = start + tl.arange(0, KEYS)
        at_k = key_index[:, None] * WIDTH + column
        at_v = key_index[:, None] * V_WIDTH + v_column
        k = tl.load(past_k + at_k, mask=is_column, other=0.0)
        v = tl.load(past_v + at_v, mask=is_v_column, other=0.0)
        tl.store(k_out + at_k, k, mask=is_column & is_moved)
        tl.store(v_out + at_v, v, mask=is_v_column & is_moved)
        acc, top, total = take_in(
            rows, k, v, acc, top, total, key_index, keys, mask, is_read, kept, position,
            SCALE, CAP, IS_CAUSAL, WINDOW, MASK, FILL, WINDOW > 0,
        )  # fmt: skip
    for start in tl.range(plain, high, KEYS, num_stages=1):
        key_index = start + tl.arange(0, KEYS)
        is_new = ((key_index >= first) & (key_index < first + added))[:, None]
        is_present = (key_index < keys)[:, None]
        at_k = key_index[:, None] * WIDTH + column
        at_v = key_index[:, None] * V_WIDTH + v_column
        k = tl.load(past_k + at_k, mask=is_present & ~is_new & is_column, other=0.0)
        v = tl.load(past_v + at_v, mask=is_present & ~is_new & is_v_column, other=0.0)
        from_k = (key_index[:, None] - first) * K_PITCH + column
        from_v = (key_index[:, None] - first) * V_PITCH + v_column
        k = tl.where(is_new, tl.load(new_k + from_k, mask=is_new & is_column, other=0.0), k)
        v = tl.where(is_new, tl.load(new_v + from_v, mask=is_new & is_v_column, other=0.0), v)
        is_written = is_present & (is_new | is_moved)
        tl.store(k_out + at_k, k, mask=is_written & is_column)
        tl.store(v_out + at_v, v, mask=is_written & is_v_column)
        acc, top, total = take_in(
            rows, k, v, acc, top, total, key_index, keys, mask, is_read, kept, position,
            SCALE, CAP, IS_CAUSAL, WINDOW, MASK, FILL, True,
        )  # fmt: skip
    offset = (group * PARTS + part) * ROWS + row
    tl.store(tops + offset, top)
    tl.store(totals + offset, total)
    tl.store(parts + offset[:, None] * V + v_column, acc)
