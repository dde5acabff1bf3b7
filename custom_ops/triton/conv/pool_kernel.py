"""The largest value of each window of NHWC tensors."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def max_pool_kernel(
    x, y,
    H, W, C: tl.constexpr, OH, OW,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, PT: tl.constexpr, PL: tl.constexpr,
    BW: tl.constexpr, BC: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """Write some channels of one row of pixels; what lies outside of an image is no value.

    Args:
        x: [N, H, W, C].
        y: [N, OH, OW, C].
        LEAST: No number is less; "-inf", or "0" of uint8.
    """
    IS_BYTE: tl.constexpr = LEAST == "0"
    least: tl.constexpr = 0 if IS_BYTE else float("-inf")
    line = tl.program_id(0)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    is_channel = channel < C
    top = line % OH * SH - PT
    source = x + (line // OH).to(tl.int64) * (H * W * C)
    for start in tl.range(0, OW, BW):
        at = start + tl.arange(0, BW)
        is_pixel = at < OW
        left = at * SW - PL
        most = tl.full((BW, BC), least, tl.int32 if IS_BYTE else tl.float32)
        for i in tl.static_range(KH):
            row = top + i * DH
            is_row = (row >= 0) & (row < H)
            for j in tl.static_range(KW):
                column = left + j * DW
                is_in = is_pixel & (column >= 0) & (column < W) & is_row
                value = tl.load(
                    source + (row * W + column)[:, None] * C + channel[None, :],
                    mask=is_in[:, None] & is_channel[None, :],
                    other=least,
                )
                if IS_BYTE:
                    most = tl.maximum(most, value.to(tl.int32))
                else:
                    value = value.to(tl.float32)
                    # A NaN is the largest.
                    most = tl.where((value > most) | (value != value), value, most)
        offset = (line.to(tl.int64) * OW + at)[:, None] * C + channel[None, :]
        mask = is_pixel[:, None] & is_channel[None, :]
        tl.store(y + offset, most.to(y.dtype.element_ty), mask=mask)
