"""Times of matmuls with constant weights on an H100, in half precision and in fp8.

Fits to what was measured (`docs/benchmarks/gpu_kernels.md`), in nanoseconds.
Matrices come from memory.
"""

from __future__ import annotations

#: Largest M at which a matmul takes the time of reading its weight.
SMALL_M_MAX = 16
#: What a launch takes however little it does, in nanoseconds.
LAUNCH_NS = 1500.0
#: Bytes of memory in a nanosecond.
_BYTES = 2350.0
#: M = 1: fixed time of our kernel, and bytes of the weight per ns; the same for small M, of cuBLAS
#: with the epilogue, and of ours.
_HALF_ROW, _FP8_ROW = (2300.0, 2850.0), (2400.0, 1900.0)
_HALF_SMALL_M, _FP8_SMALL_M = (4600.0, 2900.0), (3800.0, 1800.0)
#: Large M: least time of a matmul, additional time, and operations per ns.
_HALF_START, _HALF_LEAST, _HALF_RATE = 4000.0, 2400.0, 740e3
_FP8_START, _FP8_LEAST, _FP8_RATE = 4000.0, 1500.0, 1300e3


def half_ns(rows: int, depth: int, columns: int) -> float:
    """Return the time of a matmul in half precision, in ns."""
    numbers = float(depth * columns)
    start, rate = _HALF_ROW if rows == 1 else _HALF_SMALL_M
    read = start + 2 * numbers / rate
    if rows <= SMALL_M_MAX:
        return read
    return max(read, _HALF_START + max(2 * rows * numbers / _HALF_RATE, _HALF_LEAST))


def fp8_ns(rows: int, depth: int, columns: int) -> float:
    """Return the time of a matmul with fp8 weights, and fp8 rows for large M, in ns."""
    numbers = float(depth * columns)
    start, rate = _FP8_ROW if rows == 1 else _FP8_SMALL_M
    if rows <= SMALL_M_MAX:
        return start + numbers / rate
    return _FP8_START + max(2 * rows * numbers / _FP8_RATE, _FP8_LEAST)


def rounding_ns(count: int) -> float:
    """Return the time of rounding `count` numbers to fp8, or of upconverting them, in ns."""
    return LAUNCH_NS + 3.0 * count / _BYTES
