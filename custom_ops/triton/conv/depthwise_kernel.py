"""Depthwise convolutions of NHWC tensors, with bias, epilogue, and the means of rows.

The source of `epilogue` is appended to this text for each region.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def depthwise_kernel(
    x, w, bias, extra, y, means,
    H, W, C: tl.constexpr,
    OH, OW,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, PT: tl.constexpr, PL: tl.constexpr,
    BW: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Write some channels of one row of pixels, and their mean.

    Args:
        x: [N, H, W, C].
        w: [KH, KW, C].
        bias: [C], or None.
        extra: [N, OH, OW, C], or None.
        y: [N, OH, OW, C].
        means: [N, OH, C], or None.
    """
    line = tl.program_id(0)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    is_channel = channel < C
    top = line % OH * SH - PT
    source = x + (line // OH).to(tl.int64) * (H * W * C)
    total = tl.zeros((BC,), tl.float32)
    for start in tl.range(0, OW, BW):
        at = start + tl.arange(0, BW)
        is_pixel = at < OW
        left = at * SW - PL
        acc = tl.zeros((BW, BC), tl.float32)
        for i in tl.static_range(KH):
            row = top + i * DH
            is_row = (row >= 0) & (row < H)
            for j in tl.static_range(KW):
                column = left + j * DW
                is_in = is_pixel & (column >= 0) & (column < W) & is_row
                value = tl.load(
                    source + (row * W + column)[:, None] * C + channel[None, :],
                    mask=is_in[:, None] & is_channel[None, :],
                    other=0.0,
                )
                tap = tl.load(w + (i * KW + j) * C + channel, mask=is_channel, other=0.0)
                acc += value.to(tl.float32) * tap.to(tl.float32)[None, :]
        if bias is not None:
            acc += tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)[None, :]
        offset = (line.to(tl.int64) * OW + at)[:, None] * C + channel[None, :]
        mask = is_pixel[:, None] & is_channel[None, :]
        other = 0.0
        if extra is not None:
            other = tl.load(extra + offset, mask=mask, other=0.0).to(tl.float32)
        result = epilogue(acc, other).to(y.dtype.element_ty)  # noqa: F821
        tl.store(y + offset, result, mask=mask)
        if means is not None:
            total += tl.sum(tl.where(mask, result.to(tl.float32), 0.0), 0)
    if means is not None:
        tl.store(
            means + line * C + channel, (total / OW).to(means.dtype.element_ty), mask=is_channel
        )
