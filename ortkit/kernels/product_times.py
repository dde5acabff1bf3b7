"""What products with constant matrices take on an H100, in half precision and in eight bits.

Fits to what was measured (`docs/gpu-results.md`), in nanoseconds, matrices coming from memory.
"""

from __future__ import annotations

#: Rows up to which a product takes the time in which its matrix is read.
FEW_ROWS = 16
#: A launch, and bytes of memory in a nanosecond.
_LAUNCH, _BYTES = 1500.0, 2350.0
#: One row: what a kernel of ours takes besides reading, and bytes of the matrix in a nanosecond;
#: so for a few rows, by cuBLAS with what follows, and by ours.
_HALF_ROW, _EIGHT_ROW = (2300.0, 2850.0), (2400.0, 1900.0)
_HALF_FEW, _EIGHT_FEW = (4600.0, 2900.0), (3800.0, 1800.0)
#: Many rows: what a product takes at least, besides its operations, and operations a nanosecond.
_HALF_START, _HALF_LEAST, _HALF_RATE = 4000.0, 2400.0, 740e3
_EIGHT_START, _EIGHT_LEAST, _EIGHT_RATE = 4000.0, 1500.0, 1300e3


def half_ns(rows: int, depth: int, columns: int) -> float:
    """Return the time of a product in half precision."""
    numbers = float(depth * columns)
    start, rate = _HALF_ROW if rows == 1 else _HALF_FEW
    read = start + 2 * numbers / rate
    if rows <= FEW_ROWS:
        return read
    return max(read, _HALF_START + max(2 * rows * numbers / _HALF_RATE, _HALF_LEAST))


def eight_ns(rows: int, depth: int, columns: int) -> float:
    """Return the time of a product whose matrix, and whose rows if they are many, have 8 bits."""
    numbers = float(depth * columns)
    start, rate = _EIGHT_ROW if rows == 1 else _EIGHT_FEW
    if rows <= FEW_ROWS:
        return start + numbers / rate
    return _EIGHT_START + max(2 * rows * numbers / _EIGHT_RATE, _EIGHT_LEAST)


def rounding_ns(count: int) -> float:
    """Return the time in which so many numbers are rounded to eight bits, or made wider again."""
    return _LAUNCH + 3.0 * count / _BYTES
