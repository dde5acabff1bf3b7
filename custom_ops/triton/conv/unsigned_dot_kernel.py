"""Products of uint8 and int8, and bytes of integers; see `ortkit.kernels.triton.unsigned`."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def unsigned_dot(a, b, acc):
    """Return `acc + a b`: int32 [M, N] of uint8 [M, K] and int8 [K, N]."""
    return tl.dot(a.to(tl.int8, bitcast=True), b, acc, out_dtype=tl.int32)


@triton.jit
def saturated_bytes(x):
    """Return int32 as uint8: 0 for less, and 255 for more."""
    return tl.inline_asm_elementwise(
        "{ .reg .b32 t; cvt.pack.sat.u8.s32.b32 t, $4, $3, 0;"
        " cvt.pack.sat.u8.s32.b32 $0, $2, $1, t; }",
        "=r,r,r,r,r", [x], dtype=tl.uint8, is_pure=True, pack=4,
    )  # fmt: skip
