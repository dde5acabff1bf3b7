"""Products with weights in 4 bits and a factor for each block, for tensors at any address.

Appended to `nbits_kernel`, whose functions it calls; `epilogue` is appended to both.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def nbits_plain_kernel(
    x, w, scale, zero, e0, e1, e2, e3, y, M,
    N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, IS_BFLOAT: tl.constexpr,
    KIND0: tl.constexpr, KIND1: tl.constexpr, KIND2: tl.constexpr, KIND3: tl.constexpr,
):  # fmt: skip
    """Write one tile of `epilogue(x @ w, e0, ...)`; see `nbits_small_m_kernel`.

    Args:
        BK: Depth of a step, a part of `BLOCK`.
    """
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    at = tl.arange(0, BK // 2)
    BLOCKS: tl.constexpr = K // BLOCK
    DTYPE: tl.constexpr = tl.bfloat16 if IS_BFLOAT else tl.float16
    left = tl.minimum(rows, M - 1)[:, None].to(tl.int64) * K + 2 * at[None, :]
    known = tl.minimum(columns, N - 1).to(tl.int64)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK):
        pairs = tl.load(w + known[None, :] * (K // 2) + (k // 2 + at)[:, None])
        factor = tl.load(scale + known * BLOCKS + k // BLOCK).to(tl.float32)
        offset = 8.0
        if zero is not None:
            z = tl.load(zero + known * ((BLOCKS + 1) // 2) + k // BLOCK // 2).to(tl.int32)
            offset = ((z >> (k // BLOCK % 2 * 4)) & 15).to(tl.float32)[None, :]
        low = ((pairs & 15).to(tl.float32) - offset) * factor[None, :]
        high = ((pairs >> 4).to(tl.float32) - offset) * factor[None, :]
        acc = tl.dot(tl.load(x + left + k), low.to(DTYPE), acc)
        acc = tl.dot(tl.load(x + left + k + 1), high.to(DTYPE), acc)
    made = epilogue(  # noqa: F821
        acc, read(e0, rows, columns, M, N, KIND0, False),  # noqa: F821
        read(e1, rows, columns, M, N, KIND1, False),  # noqa: F821
        read(e2, rows, columns, M, N, KIND2, False),  # noqa: F821
        read(e3, rows, columns, M, N, KIND3, False), 0.0,  # noqa: F821
    )  # fmt: skip
    mask = (rows < M)[:, None] & (columns < N)[None, :]
    output_offset = rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(y + output_offset, made.to(y.dtype.element_ty), mask=mask)
