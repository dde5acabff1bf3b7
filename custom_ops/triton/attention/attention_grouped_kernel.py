"""GroupQueryAttention over caches; it stands after `attention_kernel` and
`attention_kv_append_kernel`, whose `attend` and `take_in` it calls.

How many keys a sample has is read on the device, so that the launches of a token are the same for
all lengths and may be captured in a graph. What a cache has no room for is not written.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def span_of(lengths, sample, queries, rows):
    """Return how many keys are before a sample's new rows, and how many it has with them."""
    length = tl.load(lengths + sample) + 1
    # Of a short prompt more rows are written than count.
    first = tl.maximum(tl.minimum(length, rows) - queries, 0)
    return first, tl.maximum(tl.minimum(length, rows), 0)


@triton.jit
def rotated(
    x, at, is_row, position, weight, cos, sin, positions,
    WIDTH: tl.constexpr, W: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr,
    EPSILON: tl.constexpr,
):  # fmt: skip
    """Return rows [ROWS, W] of heads with their norm and rotation, rounded once.

    Args:
        x: Where elements lie.
        at: [ROWS], the first element of each row.
        is_row: [ROWS], whether there is one.
        position: [ROWS].
        weight: [WIDTH], of an RMS norm; None for none.
        cos: [positions, HALF]; sin alike.
        HALF: Of the columns that are rotated; 0 for none.
        PAIRS: Whether neighbours are rotated with each other, and not columns HALF apart.
    """
    column = tl.arange(0, W)
    is_present = is_row[:, None] & (column < WIDTH)[None, :]
    value = tl.load(x + at[:, None] + column[None, :], mask=is_present, other=0.0).to(tl.float32)
    if weight is not None:
        factor = tl.rsqrt(tl.sum(value * value, 1) / WIDTH + EPSILON)[:, None]
        scale = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        value *= factor * scale[None, :]
    if HALF > 0:
        is_turned = column < 2 * HALF
        if PAIRS:
            other = column ^ 1
            angle = column // 2
            is_first = column % 2 == 0
        else:
            is_first = column < HALF
            other = tl.where(is_first, column + HALF, column - HALF)
            angle = tl.where(is_first, column, column - HALF)
        is_read = is_row[:, None] & is_turned[None, :]
        partner = tl.load(x + at[:, None] + other[None, :], mask=is_read, other=0.0)
        partner = partner.to(tl.float32)
        if weight is not None:
            scale = tl.load(weight + other, mask=is_turned, other=0.0).to(tl.float32)
            partner *= factor * scale[None, :]
        known = tl.minimum(tl.maximum(position, 0), positions - 1)
        to = known.to(tl.int64)[:, None] * HALF + angle[None, :]
        c = tl.load(cos + to, mask=is_read, other=1.0).to(tl.float32)
        s = tl.load(sin + to, mask=is_read, other=0.0).to(tl.float32)
        value = value * c + tl.where(is_first[None, :], -partner, partner) * s
    return value.to(x.dtype.element_ty)


@triton.jit
def carry_over(
    past, out, low, high, old, total, WIDTH: tl.constexpr, W: tl.constexpr, KEYS: tl.constexpr
):
    """Copy the old rows of a head to a cache of its own, and zeros behind `total`."""
    column = tl.arange(0, W)[None, :]
    for start in tl.range(low, high, KEYS, num_stages=1):
        key = start + tl.arange(0, KEYS)[:, None]
        is_old = (key < old) & (key < high) & (column < WIDTH)
        is_out = (key < high) & (column < WIDTH) & ((key < old) | (key >= total))
        value = tl.load(past + key * WIDTH + column, mask=is_old, other=0.0)
        tl.store(out + key * WIDTH + column, value, mask=is_out)


@triton.jit
def are_apart(past_k, k_out, past_v, v_out):
    """Say whether caches lie elsewhere than those before."""
    return (past_k.to(tl.int64) != k_out.to(tl.int64)) | (
        past_v.to(tl.int64) != v_out.to(tl.int64)
    )


@triton.jit
def grouped_part(
    q, new_k, new_v, past_k, past_v, lengths, cos, sin, q_weight, k_weight, k_out, v_out,
    parts, tops, totals, queries, past_elements, rows, positions,
    HEADS: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr, W: tl.constexpr,
    Q_PITCH: tl.constexpr, Q_FIRST: tl.constexpr, K_PITCH: tl.constexpr, K_FIRST: tl.constexpr,
    V_PITCH: tl.constexpr, V_FIRST: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr,
    EPSILON: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr, WINDOW: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Attention of one new row over a part of the keys, for all heads that share these.

    The part with the last key writes the new row. Parts without a key have a sum of 0.

    Args:
        q: [batch, queries, Q_PITCH], heads from column Q_FIRST on; new_k and new_v alike.
        past_k: [batch, heads of k, rows before, WIDTH]; past_v alike.
        lengths: int32 [batch], keys of each sample less one.
        cos: See `rotated`; so are sin, `positions`, HALF, PAIRS and EPSILON.
        q_weight: Of the norm of rows of q, None for none; k_weight alike.
        k_out: [batch, heads of k, rows, WIDTH]; v_out alike. They may lie where past_k lies.
        parts: float32 [batch, heads of k, PARTS, ROWS, W]: sums of values.
        tops: [batch, heads of k, PARTS, ROWS]: the highest score, in base 2.
        totals: Likewise: the sum of weights.
        queries: One, or none: then caches are carried over only.
        past_elements: Of a head of past_k.
        CAP: The scores' bound, 0 for none.
        WINDOW: How many keys the row sees, 0 for all.
    """
    part = tl.program_id(0)
    shared = tl.program_id(1)
    sample = tl.program_id(2).to(tl.int64)
    row = tl.arange(0, ROWS)
    is_row = (row < SHARED) & (queries > 0)
    group = sample * (HEADS // SHARED) + shared
    old = past_elements // WIDTH
    first, total = span_of(lengths, sample, queries, rows)
    first = tl.minimum(first, old)
    past_k += group * past_elements
    past_v += group * past_elements
    k_out += group * rows * WIDTH
    v_out += group * rows * WIDTH
    if are_apart(past_k, k_out, past_v, v_out):
        low = rows * part // PARTS
        high = rows * (part + 1) // PARTS
        carry_over(past_k, k_out, low, high, first, total, WIDTH, W, KEYS)
        carry_over(past_v, v_out, low, high, first, total, WIDTH, W, KEYS)
    at = sample * queries * Q_PITCH + Q_FIRST + (shared * SHARED + row) * WIDTH
    position = first + row * 0
    rotated_q = rotated(
        q, at, is_row, position, q_weight, cos, sin, positions, WIDTH, W, HALF, PAIRS, EPSILON
    )
    acc = tl.zeros((ROWS, W), tl.float32)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    sums = tl.zeros((ROWS,), tl.float32)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(total - WINDOW, 0) // KEYS
    blocks = (total + KEYS - 1) // KEYS - begin
    low = (begin + blocks * part // PARTS) * KEYS
    high = tl.minimum(total, (begin + blocks * (part + 1) // PARTS) * KEYS)
    plain = tl.maximum(tl.minimum(high, first) // KEYS * KEYS, low)
    column = tl.arange(0, W)[None, :]
    is_column = column < WIDTH
    kept = (0, total)
    for start in tl.range(low, plain, KEYS):
        key = start + tl.arange(0, KEYS)
        to = key[:, None] * WIDTH + column
        k = tl.load(past_k + to, mask=is_column, other=0.0)
        v = tl.load(past_v + to, mask=is_column, other=0.0)
        acc, top, sums = take_in(  # noqa: F821  of attention_kv_append_kernel
            rotated_q, k, v, acc, top, sums, key, total, q, False, kept, position,
            SCALE, CAP, True, WINDOW, 0, 0.0, WINDOW > 0,
        )  # fmt: skip
    # One block at most, the last: it has the new row.
    for start in tl.range(plain, high, KEYS, num_stages=1):
        key = start + tl.arange(0, KEYS)
        to = key[:, None] * WIDTH + column
        is_old = (key < first)[:, None] & is_column
        is_new = (key == first)[:, None] & (queries > 0)
        k = tl.load(past_k + to, mask=is_old, other=0.0)
        v = tl.load(past_v + to, mask=is_old, other=0.0)
        none = tl.arange(0, 1)
        from_k = sample * queries * K_PITCH + K_FIRST + shared * WIDTH + none
        added = rotated(
            new_k, from_k, none == 0, none + first, k_weight, cos, sin, positions,
            WIDTH, W, HALF, PAIRS, EPSILON,
        )  # fmt: skip
        from_v = sample * queries * V_PITCH + V_FIRST + shared * WIDTH
        k = tl.where(is_new, added, k)
        v = tl.where(is_new, tl.load(new_v + from_v + column, mask=is_column, other=0.0), v)
        tl.store(k_out + to, k, mask=is_new & is_column)
        tl.store(v_out + to, v, mask=is_new & is_column)
        acc, top, sums = take_in(  # noqa: F821
            rotated_q, k, v, acc, top, sums, key, total, q, False, kept, position,
            SCALE, CAP, True, WINDOW, 0, 0.0, True,
        )  # fmt: skip
    offset = (group * PARTS + part) * ROWS + row
    tl.store(tops + offset, top)
    tl.store(totals + offset, sums)
    tl.store(parts + offset[:, None] * W + column, acc)


@triton.jit
def grouped_join(
    parts, tops, totals, sink, y,
    HEADS: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr, W: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Put the parts of one row of a head together, see `grouped_part`; always in one order.

    Args:
        sink: [HEADS], a score without a value; None for none.
        y: [batch, 1, HEADS * WIDTH].
    """
    row = tl.program_id(0)
    shared = tl.program_id(1)
    sample = tl.program_id(2).to(tl.int64)
    head = shared * SHARED + row
    first = (sample * (HEADS // SHARED) + shared) * PARTS * ROWS + row
    offset = first + tl.arange(0, PARTS) * ROWS
    top = tl.load(tops + offset)
    highest = tl.max(top, 0)
    if sink is not None:
        score = tl.load(sink + head).to(tl.float32) * LOG2E  # noqa: F821  of attention_kernel
        highest = tl.maximum(highest, score)
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    weight = tl.exp2(top - shift)
    total = tl.sum(tl.load(totals + offset) * weight, 0)
    if sink is not None:
        total += tl.exp2(score - shift)
    share = weight / tl.where(total == 0.0, 1.0, total)
    column = tl.arange(0, W)
    found = tl.load(parts + offset[:, None] * W + column[None, :])
    made = tl.sum(found * share[:, None], 0)
    y += (sample * HEADS + head) * WIDTH
    tl.store(y + column, made.to(y.dtype.element_ty), mask=column < WIDTH)


@triton.jit
def grouped_carry(
    past_k, past_v, lengths, k_out, v_out, queries, past_elements, rows,
    KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, W: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Carry old rows over, if caches lie elsewhere than before; see `grouped_part`."""
    sample = tl.program_id(2).to(tl.int64)
    group = sample * KV_HEADS + tl.program_id(1)
    first, total = span_of(lengths, sample, queries, rows)
    first = tl.minimum(first, past_elements // WIDTH)
    total = tl.minimum(first + queries, rows)
    past_k += group * past_elements
    past_v += group * past_elements
    k_out += group * rows * WIDTH
    v_out += group * rows * WIDTH
    if are_apart(past_k, k_out, past_v, v_out):
        low = tl.program_id(0) * KEYS
        high = tl.minimum(rows, low + KEYS)
        carry_over(past_k, k_out, low, high, first, total, WIDTH, W, KEYS)
        carry_over(past_v, v_out, low, high, first, total, WIDTH, W, KEYS)


@triton.jit
def grouped_append(
    q, new_k, new_v, lengths, cos, sin, q_weight, k_weight, q_out, k_out, v_out,
    queries, past_elements, rows, positions,
    HEADS: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr, W: tl.constexpr,
    Q_PITCH: tl.constexpr, Q_FIRST: tl.constexpr, K_PITCH: tl.constexpr, K_FIRST: tl.constexpr,
    V_PITCH: tl.constexpr, V_FIRST: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr,
    EPSILON: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write some new rows of a head of q, k or v: q to a tensor of its own, others to the caches.

    Args:
        q_out: [batch, queries, HEADS * WIDTH]. The others are as `grouped_part` has them.
    """
    head = tl.program_id(1)
    sample = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < queries
    KV_HEADS: tl.constexpr = HEADS // SHARED
    first, _ = span_of(lengths, sample, queries, rows)
    first = tl.minimum(first, past_elements // WIDTH)
    position = first + row
    column = tl.arange(0, W)[None, :]
    is_column = column < WIDTH
    line = (sample * queries + row).to(tl.int64)
    if head < HEADS:
        made = rotated(
            q, line * Q_PITCH + Q_FIRST + head * WIDTH, is_row, position, q_weight, cos, sin,
            positions, WIDTH, W, HALF, PAIRS, EPSILON,
        )  # fmt: skip
        to = line[:, None] * (HEADS * WIDTH) + head * WIDTH + column
        tl.store(q_out + to, made, mask=is_row[:, None] & is_column)
    else:
        is_kept = (is_row & (position < rows))[:, None] & is_column
        if head < HEADS + KV_HEADS:
            group = head - HEADS
            made = rotated(
                new_k, line * K_PITCH + K_FIRST + group * WIDTH, is_row, position, k_weight, cos,
                sin, positions, WIDTH, W, HALF, PAIRS, EPSILON,
            )  # fmt: skip
            k_out += (sample * KV_HEADS + group) * rows * WIDTH
            tl.store(k_out + position[:, None] * WIDTH + column, made, mask=is_kept)
        else:
            group = head - HEADS - KV_HEADS
            at = line[:, None] * V_PITCH + V_FIRST + group * WIDTH + column
            made = tl.load(new_v + at, mask=is_row[:, None] & is_column, other=0.0)
            v_out += (sample * KV_HEADS + group) * rows * WIDTH
            tl.store(v_out + position[:, None] * WIDTH + column, made, mask=is_kept)


@triton.jit
def grouped_rows(
    q, k, v, lengths, sink, y, queries, past_elements, rows,
    HEADS: tl.constexpr, SHARED: tl.constexpr,
    WIDTH: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    SCALE: tl.constexpr, CAP: tl.constexpr, WINDOW: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Attention of one block of new rows of one head of one sample over its cache.

    Args:
        q: [batch, queries, HEADS * WIDTH], what `grouped_append` writes.
        k: [batch, heads of k, rows, WIDTH]; v alike.
        sink: [HEADS], a score without a value; None for none.
        y: As q. The others are as `grouped_part` has them.
        W1: A power of two; W1 + W2 is not less than WIDTH.
    """
    # Later queries see more keys: those that take longest begin first, of all heads.
    head = tl.program_id(0)
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    sample = tl.program_id(2).to(tl.int64)
    row = block * QUERIES + tl.arange(0, QUERIES)
    first, keys = span_of(lengths, sample, queries, rows)
    first = tl.minimum(first, past_elements // WIDTH)
    PITCH: tl.constexpr = HEADS * WIDTH
    q += sample * queries * PITCH + head * WIDTH
    y += sample * queries * PITCH + head * WIDTH
    group = sample * (HEADS // SHARED) + head // SHARED
    k += group * rows * WIDTH
    v += group * rows * WIDTH
    position = first + row
    begin = first + block * QUERIES
    high = tl.minimum(keys, begin + QUERIES)
    plain_high = tl.minimum(keys, begin + 1) // KEYS * KEYS
    low = 0
    plain_low = 0
    if WINDOW > 0:
        low = tl.maximum(0, begin - WINDOW + 1) // KEYS * KEYS
        plain_low = (tl.maximum(0, begin + QUERIES - WINDOW) + KEYS - 1) // KEYS * KEYS
    plain_low = tl.minimum(
        tl.maximum(plain_low, low), tl.maximum(low, (high + KEYS - 1) // KEYS * KEYS)
    )
    plain_high = tl.maximum(plain_high, plain_low)
    # Names of `attention_kernel`, whose module this one follows.
    q1 = load_rows(q, row, queries, 0, W1, WIDTH, PITCH, True)  # noqa: F821
    q2 = q1
    if W2 > 0:
        q2 = load_rows(q, row, queries, W1, W2, WIDTH, PITCH, True)  # noqa: F821
    acc1 = tl.zeros((QUERIES, W1), tl.float32)
    acc2 = tl.zeros((QUERIES, W2 if W2 > 0 else 1), tl.float32)
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    if WINDOW > 0:
        acc1, acc2, top, total = attend(  # noqa: F821
            low, tl.minimum(plain_low, high), q1, q2, acc1, acc2, top, total,
            k, v, keys, q, row, position, row, queries,
            KEYS, WIDTH, W1, W2, WIDTH, W1, W2, WIDTH, WIDTH,
            SCALE, CAP, True, WINDOW, 0, 0.0, False, True, True, True,
        )  # fmt: skip
    acc1, acc2, top, total = attend(  # noqa: F821
        plain_low, plain_high, q1, q2, acc1, acc2, top, total,
        k, v, keys, q, row, position, row, queries,
        KEYS, WIDTH, W1, W2, WIDTH, W1, W2, WIDTH, WIDTH,
        SCALE, CAP, True, WINDOW, 0, 0.0, False, True, False, False,
    )  # fmt: skip
    acc1, acc2, top, total = attend(  # noqa: F821
        plain_high, high, q1, q2, acc1, acc2, top, total,
        k, v, keys, q, row, position, row, queries,
        KEYS, WIDTH, W1, W2, WIDTH, W1, W2, WIDTH, WIDTH,
        SCALE, CAP, True, WINDOW, 0, 0.0, False, True, True, True,
    )  # fmt: skip
    if sink is not None:
        score = tl.load(sink + head).to(tl.float32) * LOG2E  # noqa: F821
        highest = tl.maximum(top, score)
        faded = tl.exp2(top - highest)
        acc1 *= faded[:, None]
        acc2 *= faded[:, None]
        total = total * faded + tl.exp2(score - highest)
    # A query that sees no key gets 0.
    share = (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]
    store_rows(y, acc1 * share, row, queries, 0, W1, WIDTH, PITCH, True)  # noqa: F821
    if W2 > 0:
        store_rows(y, acc2 * share, row, queries, W1, W2, WIDTH, PITCH, True)  # noqa: F821
