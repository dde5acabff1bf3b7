"""Products of uint8 and int8; see `ortkit.kernels.triton.unsigned`."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def unsigned_dot(a, b, acc):
    """Return `acc + a b`: int32 [M, N] of uint8 [M, K] and int8 [K, N]."""
    return tl.dot(a.to(tl.int8, bitcast=True), b, acc, out_dtype=tl.int32)
