"""Flash attention in Triton: queries in blocks, and for each the keys and values in blocks."""

# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def flash_attention(
    q_ptr, k_ptr, v_ptr, y_ptr, queries, keys,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write softmax(q k^T / sqrt(WIDTH)) v of the heads along the grid's second axis.

    The largest score so far is subtracted from all, and what was summed before is scaled when a
    larger one comes, so that no row of scores is ever kept.
    """
    head = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    j = tl.arange(0, KEYS)
    c = tl.arange(0, WIDTH)
    q_at = q_ptr + head * queries * WIDTH + i[:, None] * WIDTH + c[None, :]
    k_at = k_ptr + head * keys * WIDTH + j[:, None] * WIDTH + c[None, :]
    v_at = v_ptr + head * keys * WIDTH + j[:, None] * WIDTH + c[None, :]
    q = tl.load(q_at, mask=i[:, None] < queries, other=0.0)
    scale = 1.4426950408889634 / tl.sqrt(WIDTH + 0.0)  # powers of 2 are what the hardware has
    largest = tl.full((QUERIES,), float("-inf"), tl.float32)
    weights = tl.zeros((QUERIES,), tl.float32)
    total = tl.zeros((QUERIES, WIDTH), tl.float32)
    for start in range(0, keys, KEYS):
        is_key = j < keys - start
        k = tl.load(k_at, mask=is_key[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        e = tl.exp2(scores - larger[:, None])
        before = tl.exp2(largest - larger)
        v = tl.load(v_at, mask=is_key[:, None], other=0.0)
        total = tl.dot(e.to(v.dtype), v, total * before[:, None], input_precision="ieee")
        weights = weights * before + tl.sum(e, 1)
        largest = larger
        k_at += KEYS * WIDTH
        v_at += KEYS * WIDTH
    y = total / weights[:, None]
    y_at = y_ptr + head * queries * WIDTH + i[:, None] * WIDTH + c[None, :]
    tl.store(y_at, y, mask=i[:, None] < queries)
