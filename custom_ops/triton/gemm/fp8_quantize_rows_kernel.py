"""Rows in fp8: with a residual sum and a norm before, and a factor for each row or one for all."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def fp8_rows(
    x, skip, added, scale, shift, y, factors, total, normed, M,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EPSILON: tl.constexpr,
    IS_CENTRED: tl.constexpr, FACTOR: tl.constexpr, LARGEST: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """Write some rows of `norm(x + skip + added) / factor`, rounded to fp8.

    Args:
        x: [M, K].
        skip: [M, K], or None.
        added: [K], or None.
        scale: [K], or None: the rows have no norm.
        shift: [K], or None.
        y: [M, K].
        factors: [M], or None where `FACTOR` is that of all rows.
        total: [M, K], the sum before the norm, or None.
        normed: [M, K], the norm, or None.
        M: Rows.
        ROWS: Of a block.
        BLOCK: A power of two, K at least.
        EPSILON: Of the norm.
        IS_CENTRED: Whether the norm takes the mean off.
        LARGEST: The reciprocal of the largest fp8 number.
        LEAST: Of factors.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    is_row, is_column = (row < M)[:, None], (column < K)[None, :]
    offset = row.to(tl.int64)[:, None] * K + column[None, :]
    value = tl.load(x + offset, mask=is_row & is_column, other=0.0).to(tl.float32)
    if skip is not None:
        value += tl.load(skip + offset, mask=is_row & is_column, other=0.0).to(tl.float32)
    if added is not None:
        value += tl.load(added + column, mask=column < K, other=0.0).to(tl.float32)[None, :]
    if skip is not None or added is not None:
        # The norm is that of the sum as others read it.
        value = value.to(x.dtype.element_ty).to(tl.float32)
        value = tl.where(is_column, value, 0.0)
    if total is not None:
        tl.store(total + offset, value.to(total.dtype.element_ty), mask=is_row & is_column)
    if scale is not None:
        if IS_CENTRED:
            value = tl.where(is_column, value - tl.sum(value, 1, keep_dims=True) / K, 0.0)
        square = tl.sum(value * value, 1, keep_dims=True) / K
        value /= tl.sqrt(square + EPSILON)
        value *= tl.load(scale + column, mask=column < K, other=0.0).to(tl.float32)[None, :]
        if shift is not None:
            value += tl.load(shift + column, mask=column < K, other=0.0).to(tl.float32)[None, :]
    if normed is not None:
        tl.store(normed + offset, value.to(normed.dtype.element_ty), mask=is_row & is_column)
    if factors is None:
        value /= FACTOR
    else:
        factor = tl.maximum(tl.max(tl.abs(value), 1) * LARGEST, LEAST)
        tl.store(factors + row, factor, mask=row < M)
        value /= factor[:, None]
    tl.store(y + offset, value.to(y.dtype.element_ty), mask=is_row & is_column)
