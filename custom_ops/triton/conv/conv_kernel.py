"""Convolutions of NHWC tensors as products of matrices, with gate, bias and epilogue.

The source of `epilogue` is appended to this text for each region.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def conv_kernel(
    x, w, bias, gate, extra, y, parts,
    pixels,
    H, W, C: tl.constexpr, PITCH: tl.constexpr,
    OH, OW, OUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, PT: tl.constexpr, PL: tl.constexpr,
    IS_POINT: tl.constexpr, IS_PLANAR: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
    POLICY: tl.constexpr,
):  # fmt: skip
    """Write `epilogue(conv(x * gate, w) + bias, extra)` of one tile of pixels and channels.

    Args:
        x: [N, H, W, C]; from a pixel to the next one it is PITCH elements, of which some may be
            those of the next one, too. [N, C, H, W] if `IS_PLANAR`.
        w: [OUT, KH, KW, C].
        bias: [OUT], or None.
        gate: [N, 1, 1, C], or None.
        extra: [N, OH, OW, OUT], or None.
        y: [N, OH, OW, OUT].
        parts: float32 [SPLIT, N, OH, OW, OUT], or None.
        pixels: N * OH * OW.
        IS_POINT: Whether an output pixel reads the one input pixel in its place.
        SPLIT: How many blocks share the depth of a tile; where there are more than one, each
            writes its sum to `parts`, and nothing else.
        POLICY: What the L2 cache is to do with weights, as `tl.load` has it.
    """
    # Neighbouring blocks have the same pixels: x is read from memory once.
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    rm = tl.program_id(1) * BM + tl.arange(0, BM)
    rk = tl.arange(0, BK)
    if gate is not None:
        # Tiles end where images do, so that one row of factors is for all pixels of a tile.
        is_row = rm < OH * OW
        rm += tl.program_id(2) * (OH * OW)
        gate += tl.program_id(2) * C
    else:
        is_row = rm < pixels
    is_column = rn < OUT
    acc = tl.zeros((BM, BN), tl.float32)
    image = rm // (OH * OW)
    pieces: tl.constexpr = (C + BK - 1) // BK
    if IS_POINT:
        each: tl.constexpr = (pieces + SPLIT - 1) // SPLIT * BK
        start = tl.program_id(2) * each if SPLIT > 1 else 0
        stop = tl.minimum(start + each, C) if SPLIT > 1 else C
        for k in tl.range(start, stop, BK):
            is_k = k + rk < C
            a = tl.load(
                x + rm[:, None].to(tl.int64) * PITCH + (k + rk)[None, :],
                mask=is_row[:, None] & is_k[None, :],
                other=0.0,
            )
            if gate is not None:
                factor = tl.load(gate + k + rk, mask=is_k, other=0.0)[None, :]
                # Both ways the product is rounded once; GPUs before sm_90 have one of them only.
                if a.dtype == tl.float16:
                    a = a * factor
                else:
                    a = (a.to(tl.float32) * factor.to(tl.float32)).to(a.dtype)
            b = tl.load(
                w + rn[None, :] * C + (k + rk)[:, None],
                mask=is_column[None, :] & is_k[:, None],
                other=0.0,
                eviction_policy=POLICY,
            )
            acc = tl.dot(a, b, acc)
    else:
        offset = rm % (OH * OW)
        top = offset // OW * SH - PT
        left = offset % OW * SW - PL
        if IS_PLANAR:
            for k in tl.range(0, KH * KW * C, BK):
                at = k + rk
                is_k = at < KH * KW * C
                channel, tap = at % C, at // C
                row = top[:, None] + (tap // KW * DH)[None, :]
                column = left[:, None] + (tap % KW * DW)[None, :]
                is_in = (row >= 0) & (row < H) & (column >= 0) & (column < W)
                a = tl.load(
                    x + ((image[:, None].to(tl.int64) * C + channel[None, :]) * H + row) * W
                    + column,
                    mask=is_in & is_row[:, None] & is_k[None, :],
                    other=0.0,
                )  # fmt: skip
                b = tl.load(
                    w + rn[None, :] * (KH * KW * C) + at[:, None],
                    mask=is_column[None, :] & is_k[:, None],
                    other=0.0,
                    eviction_policy=POLICY,
                )
                acc = tl.dot(a, b, acc)
        else:
            first = image.to(tl.int64) * (H * W)
            each: tl.constexpr = (KH * KW * pieces + SPLIT - 1) // SPLIT
            start = tl.program_id(2) * each if SPLIT > 1 else 0
            for step in tl.range(start, tl.minimum(start + each, KH * KW * pieces)):
                tap = step // pieces
                k = step % pieces * BK + rk
                is_k = k < C
                row, column = top + tap // KW * DH, left + tap % KW * DW
                is_in = is_row & (row >= 0) & (row < H) & (column >= 0) & (column < W)
                a = tl.load(
                    x + (first + row * W + column)[:, None] * PITCH + k[None, :],
                    mask=is_in[:, None] & is_k[None, :],
                    other=0.0,
                )
                b = tl.load(
                    w + rn[None, :] * (KH * KW * C) + (tap * C + k)[:, None],
                    mask=is_column[None, :] & is_k[:, None],
                    other=0.0,
                    eviction_policy=POLICY,
                )
                acc = tl.dot(a, b, acc)
    at = rm[:, None].to(tl.int64) * OUT + rn[None, :]
    mask = is_row[:, None] & is_column[None, :]
    if SPLIT > 1:
        tl.store(parts + tl.program_id(2).to(tl.int64) * pixels * OUT + at, acc, mask=mask)
    else:
        if bias is not None:
            acc += tl.load(bias + rn, mask=is_column, other=0.0).to(tl.float32)[None, :]
        other = 0.0
        if extra is not None:
            other = tl.load(extra + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(y + at, epilogue(acc, other).to(y.dtype.element_ty), mask=mask)  # noqa: F821


@triton.jit
def conv_sum_kernel(
    parts, bias, extra, y, pixels, OUT: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr
):
    """Write `epilogue(sum(parts) + bias, extra)`, the parts always in the same order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = (tl.full((), 0, tl.int64) + pixels) * OUT
    mask = at < total
    acc = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(SPLIT):
        acc += tl.load(parts + part * total + at, mask=mask, other=0.0)
    if bias is not None:
        acc += tl.load(bias + at % OUT, mask=mask, other=0.0).to(tl.float32)
    other = 0.0
    if extra is not None:
        other = tl.load(extra + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + at, epilogue(acc, other).to(y.dtype.element_ty), mask=mask)  # noqa: F821
