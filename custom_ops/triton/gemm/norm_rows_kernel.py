"""Norms of rows before a product, with the residual sum that others read.

Before this text stands a `begin`, see `launch_plain_kernel`.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def norm_rows_kernel(
    x, skip, added, scale, shift, total, y, M,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EPSILON: tl.constexpr,
    IS_CENTRED: tl.constexpr,
):  # fmt: skip
    """Write some rows of `norm(x + skip + added)`.

    Args:
        x: [M, K].
        skip: [M, K], or None.
        added: [K], or None.
        scale: [K].
        shift: [K], or None.
        total: [M, K], the sum before the norm, or None.
        y: [M, K].
        M: Rows.
        ROWS: Of a block.
        BLOCK: A power of two, K at least.
        EPSILON: Of the norm.
        IS_CENTRED: Whether the norm takes the mean off.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    is_column = column < K
    mask = (row < M)[:, None] & is_column[None, :]
    factor = tl.load(scale + column, mask=is_column, other=0.0).to(tl.float32)
    begin()  # noqa: F821  of `launch_plain_kernel`
    offset = row.to(tl.int64)[:, None] * K + column[None, :]
    value = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
    if skip is not None:
        value += tl.load(skip + offset, mask=mask, other=0.0).to(tl.float32)
    if added is not None:
        value += tl.load(added + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    # The norm is that of the sum as others read it.
    value = value.to(x.dtype.element_ty).to(tl.float32)
    if total is not None:
        tl.store(total + offset, value.to(total.dtype.element_ty), mask=mask)
    if IS_CENTRED:
        mean = tl.sum(value, 1, keep_dims=True) / K
        value = tl.where(is_column[None, :], value - mean, 0.0)
    value /= tl.sqrt(tl.sum(value * value, 1, keep_dims=True) / K + EPSILON)
    value *= factor[None, :]
    if shift is not None:
        value += tl.load(shift + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    tl.store(y + offset, value.to(y.dtype.element_ty), mask=mask)
