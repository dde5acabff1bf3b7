"""What follows a product that a launch before has written, in its place.

Appended to `nbits_kernel`, whose `read` it calls; `epilogue` is appended to both.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def nbits_epilogue_kernel(
    e0, e1, e2, e3, y, M,
    N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    KIND0: tl.constexpr, KIND1: tl.constexpr, KIND2: tl.constexpr, KIND3: tl.constexpr,
):  # fmt: skip
    """Write one tile of `epilogue(y, e0, ...)`; see `nbits_small_m_kernel`.

    Args:
        y: [M, N], the product and then the result.
        BM: Rows of a tile.
        BN: Columns of a tile.
    """
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    mask = (rows < M)[:, None] & (columns < N)[None, :]
    offset = rows.to(tl.int64)[:, None] * N + columns[None, :]
    product = tl.load(y + offset, mask=mask, other=0.0).to(tl.float32)
    made = epilogue(  # noqa: F821
        product, read(e0, rows, columns, M, N, KIND0, False),  # noqa: F821
        read(e1, rows, columns, M, N, KIND1, False),  # noqa: F821
        read(e2, rows, columns, M, N, KIND2, False),  # noqa: F821
        read(e3, rows, columns, M, N, KIND3, False), 0.0,  # noqa: F821
    )  # fmt: skip
    tl.store(y + offset, made.to(y.dtype.element_ty), mask=mask)
