"""The functions of `unsigned_dot_kernel` as Triton's interpreter computes them: no assembly."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def unsigned_dot(a, b, acc):
    """Return `acc + a b`: int32 [M, N] of uint8 [M, K] and int8 [K, N], exact in float64."""
    made = tl.dot(a.to(tl.float64), b.to(tl.float64), out_dtype=tl.float64)
    return acc + made.to(tl.int32)


@triton.jit
def saturated_bytes(x):
    """Return int32 as uint8: 0 for less, and 255 for more."""
    return tl.minimum(tl.maximum(x, 0), 255).to(tl.uint8)
