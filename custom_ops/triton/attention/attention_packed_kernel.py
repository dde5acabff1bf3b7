"""Attention of samples of different lengths whose rows lie one after the other.

A block computes queries of one head of one sample; blocks beyond the sample's rows end at once.
The softmax is that of `attention_kernel`, whose functions load, store and mask.
"""
# mypy: ignore-errors
# ruff: noqa: F821  names of attention_kernel

import triton
import triton.language as tl


@triton.jit
def packed_attention(
    q, k, v, mask, positions, indices, y, length,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    V_WIDTH: tl.constexpr, V1: tl.constexpr, V2: tl.constexpr,
    Q_PITCH: tl.constexpr, Q_FIRST: tl.constexpr,
    K_PITCH: tl.constexpr, K_FIRST: tl.constexpr,
    V_PITCH: tl.constexpr, V_FIRST: tl.constexpr, Y_PITCH: tl.constexpr,
    SCALE: tl.constexpr, CAP: tl.constexpr, MASK: tl.constexpr, FILL: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Attention of one block of queries of one head of one sample.

    Args:
        q, k, v, y: [rows, columns], a head every WIDTH columns from *_FIRST on, a row every
            *_PITCH elements.
        mask: A number for each position of each sample, as `bias_of` reads it.
        places: [samples, length]: the last position's is the last row of all samples up to it.
        indices: Of each row the position that it has among those of all samples.
        length: Positions of a sample.
        SHARED: Heads of queries for each head of keys.
        CAP: The bound of scores, 0 for none.
        QUERIES, KEYS: Of a block.
    """
    head = tl.program_id(1)
    sample = tl.program_id(2).to(tl.int64)
    end = tl.load(positions + (sample + 1) * length - 1) + 1
    begin = tl.load(positions + sample * length - 1, mask=sample > 0, other=-1) + 1
    count = (end - begin).to(tl.int32)
    first_row = tl.program_id(0) * QUERIES
    if first_row < count:
        q += begin * Q_PITCH + head * WIDTH + Q_FIRST
        k += begin * K_PITCH + (head // SHARED) * WIDTH + K_FIRST
        v += begin * V_PITCH + (head // SHARED) * V_WIDTH + V_FIRST
        y += begin * Y_PITCH + head * V_WIDTH
        indices += begin
        rows = first_row + tl.arange(0, QUERIES)
        q1 = load_rows(q, rows, count, 0, W1, WIDTH, Q_PITCH, True)
        q2 = q1
        if W2 > 0:
            q2 = load_rows(q, rows, count, W1, W2, WIDTH, Q_PITCH, True)
        acc1 = tl.zeros((QUERIES, V1), tl.float32)
        acc2 = tl.zeros((QUERIES, V2 if V2 > 0 else 1), tl.float32)
        top = tl.full((QUERIES,), float("-inf"), tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        for start in tl.range(0, count, KEYS):
            key_index = start + tl.arange(0, KEYS)
            is_present = key_index < count
            at = tl.load(indices + key_index, mask=is_present, other=0)
            bias = bias_of(tl.load(mask + at, mask=is_present, other=0), MASK, FILL)
            bias = tl.where(is_present, bias, float("-inf"))
            part = load_rows(k, key_index, count, 0, W1, WIDTH, K_PITCH, True)
            scores = tl.dot(q1, tl.trans(part))
            if W2 > 0:
                part = load_rows(k, key_index, count, W1, W2, WIDTH, K_PITCH, True)
                scores = tl.dot(q2, tl.trans(part), scores)
            FACTOR: tl.constexpr = SCALE * LOG2E
            if CAP > 0.0:
                bent = tl.exp2(scores * (2.0 * FACTOR / CAP)) + 1.0
                scores = (CAP * LOG2E) - (2.0 * CAP * LOG2E) / bent
            else:
                scores = scores * FACTOR
            scores += bias[None, :]
            highest = tl.maximum(top, tl.max(scores, 1))
            shift = tl.where(highest == float("-inf"), 0.0, highest)
            weights = tl.exp2(scores - shift[:, None])
            faded = tl.exp2(top - shift)
            total = total * faded + tl.sum(weights, 1)
            top = highest
            share = weights.to(q1.dtype)
            part = load_rows(v, key_index, count, 0, V1, V_WIDTH, V_PITCH, True)
            acc1 = tl.dot(share, part, acc1 * faded[:, None])
            if V2 > 0:
                part = load_rows(v, key_index, count, V1, V2, V_WIDTH, V_PITCH, True)
                acc2 = tl.dot(share, part, acc2 * faded[:, None])
        # A query that sees no key gets 0.
        whole = (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]
        store_rows(y, acc1 * whole, rows, count, 0, V1, V_WIDTH, Y_PITCH, True)
        if V2 > 0:
            store_rows(y, acc2 * whole, rows, count, V1, V2, V_WIDTH, Y_PITCH, True)
