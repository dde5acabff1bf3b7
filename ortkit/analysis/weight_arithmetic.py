"""Weight arithmetic: in float64, rounded once to the weight's own type."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def rounded(exact: np.ndarray, like: np.ndarray) -> np.ndarray | None:
    """Round float64 to the type of `like`, once.

    None where the result would be out of the type's range, or so small as a whole that the
    type's subnormal numbers hold it less precisely than its normal ones.
    """
    exact = np.asarray(exact, np.float64)
    with np.errstate(over="ignore", under="ignore"):
        result = np.asarray(exact.astype(like.dtype))
    return result if _fits(result) or not exact.any() else None


def scaled(data: np.ndarray, factor: np.ndarray) -> np.ndarray | None:
    """Return `data * factor`, rounded once to the type of `data`; None as for `rounded`.

    Args:
        data: Of any float type, and any shape.
        factor: float64, broadcast to the shape of `data`.
    """
    if data.dtype.kind != "f":
        return rounded(np.multiply(data, factor, dtype=np.float64), data)
    result = np.empty(data.shape, data.dtype)
    # In blocks of the ufunc's buffer, so that no float64 copy of a large weight is made.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        np.multiply(data, factor, out=result, dtype=np.float64, casting="same_kind")
    if _fits(result) or not data.any():
        return result
    return result if not np.multiply(data, factor, dtype=np.float64).any() else None


def _fits(result: np.ndarray) -> bool:
    """Say whether the largest number is a normal one of the type; false for zeros alone.

    The error of every element is then at most half an epsilon of the largest one.
    """
    if result.size == 0:
        return True
    info = ml_dtypes.finfo(result.dtype)  # type: ignore[no-untyped-call]
    peak = float(max(result.max(), -result.min()))
    return float(info.tiny) <= peak <= float(info.max)
