"""Matrices in fp8, with a factor for each column: one pass over a weight, in parts.

Numbers are rounded by a table. A float32 loses its lower 16 bits, and the last of the others is
set if any of them was. Eight bits need 4 of the 8 that are kept, so what is rounded from there is
what is rounded at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

#: The largest number in fp8.
LARGEST = 448.0
#: Elements of a part, which stays in a processor's cache, and columns of it at least.
_PART, _COLUMNS = 2**17, 32


@dataclass(frozen=True, eq=False)
class Fp8Matrix:
    """A matrix [k, n] as [n, k] in fp8.

    Args:
        numbers: [n, k], float8_e4m3fn.
        factors: What each column is multiplied by: [n], float32 with values of float16.
        error: The norm of the difference to the matrix, over the matrix's norm.
    """

    numbers: np.ndarray
    factors: np.ndarray
    error: float


def quantize_fp8(matrix: np.ndarray) -> Fp8Matrix:
    """Return a matrix [k, n] in fp8."""
    depth, count = matrix.shape
    numbers = np.empty((count, depth), ml_dtypes.float8_e4m3fn)
    stored, factors = numbers.view(np.uint8), np.empty(count, np.float32)
    rounded, worth = _tables()
    # A copy across of what is to become float32 takes most of the time, so none is made.
    is_across = matrix.T.flags.c_contiguous
    step = max(_COLUMNS, _PART // max(depth, 1))
    off = size = 0.0
    for start in range(0, count, step):
        part = slice(start, start + step)
        lying = matrix.T[part] if is_across else matrix[:, part]
        wide = np.ascontiguousarray(lying).astype(np.float32)
        factors[part] = _factors(np.abs(wide).max(axis=int(is_across)))
        by = factors[part, None] if is_across else factors[part]
        bits = (wide / by).view(np.uint32)
        upper = (bits >> 16).astype(np.intp)
        upper |= (bits & 0xFFFF) != 0
        narrow, difference = rounded[upper], worth[upper]
        stored[part] = narrow if is_across else narrow.T
        difference *= by
        difference -= wide
        off += float(np.vdot(difference, difference))
        size += float(np.vdot(wide, wide))
    return Fp8Matrix(numbers, factors, math.sqrt(off / size) if size else 0.0)


def _factors(largest: np.ndarray) -> np.ndarray:
    """Return the factors of columns by their largest magnitudes, as float16 has them."""
    least = np.finfo(np.float16).tiny
    return np.maximum(largest / np.float32(LARGEST), least).astype(np.float16).astype(np.float32)


@cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Return fp8 of the upper 16 bits of a float32, as bytes, and what it is worth in float32."""
    upper = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # some are no numbers, and stay so
        rounded = np.clip(upper, -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn)
    return rounded.view(np.uint8), rounded.astype(np.float32)
