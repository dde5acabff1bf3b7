"""Values for the inputs of a kernel: made up, or near those that the model has.

For the process that runs kernels: it imports numpy only.
"""

from __future__ import annotations

from typing import Any, Literal

import ml_dtypes
import numpy as np

Kind = Literal[
    "normal", "other constants", "large", "positive", "negative", "zeros", "nan", "infinity"
]
#: What the sizes of a kernel are tried with, one kind after the other.
USUAL: tuple[Kind, ...] = ("normal", "other constants", "large", "normal", "positive")
#: What one size of each kernel is tried with: all kinds, or all of numbers.
ORDINARY: tuple[Kind, ...] = (
    "normal", "other constants", "large", "positive", "negative", "zeros",
)  # fmt: skip
SPECIAL: tuple[Kind, ...] = (*ORDINARY, "nan", "infinity")
#: What kernels with fp8 are tried with: factors that they multiply after a sum
#: overflow elsewhere than in their bodies.
EIGHT_BITS: tuple[Kind, ...] = ("normal", "other constants", "positive", "zeros")
_LARGE = 100.0
#: Integers that are made up are from here up to there: on both sides of sizes, inside of int8.
_LEAST, _MOST = -3, 40

_ONNX: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32), 2: np.dtype(np.uint8), 3: np.dtype(np.int8), 4: np.dtype(np.uint16),
    5: np.dtype(np.int16), 6: np.dtype(np.int32), 7: np.dtype(np.int64), 9: np.dtype(np.bool_),
    10: np.dtype(np.float16), 11: np.dtype(np.float64), 12: np.dtype(np.uint32),
    13: np.dtype(np.uint64), 16: np.dtype(ml_dtypes.bfloat16),
    17: np.dtype(ml_dtypes.float8_e4m3fn), 19: np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip


def numpy_type(element_type: int) -> np.dtype[Any]:
    """Return numpy's type of an ONNX element type.

    Raises:
        KeyError: numpy has none of whole bytes.
    """
    return _ONNX[element_type]


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Return whether a type holds fractions, those of ml_dtypes included."""
    return dtype.kind not in "biu"


def made_up(
    dtype: np.dtype[Any], shape: tuple[int, ...], kind: Kind, seed: int, least: int
) -> np.ndarray:
    """Return values of an input.

    Args:
        dtype: One of `numpy_type`.
        shape: The input's.
        kind: How the values are.
        seed: Equal seeds give equal values.
        least: The smallest integer that the body takes.
    """
    random = np.random.default_rng(seed)
    if dtype == np.bool_:
        chosen = random.random(shape) < 0.5 if kind != "zeros" else np.zeros(shape, dtype)
        return np.asarray(chosen)
    if not is_floating(dtype):
        if kind == "zeros":
            return np.full(shape, max(0, least), dtype)
        low = max(least, 0) if dtype.kind == "u" else least
        return np.asarray(random.integers(low, _MOST, shape), dtype)
    values = random.standard_normal(shape)
    match kind:
        case "large":
            values *= _LARGE
        case "zeros":
            values[...] = 0
        case "positive":
            values = np.abs(values) + 0.05
        case "negative":
            values = -_LARGE * (np.abs(values) + 0.05)
        case "nan" | "infinity" if values.size:
            count = min(values.size, 2 + values.size // 200)
            indices = random.choice(values.size, count, replace=False)
            put = [np.nan] if kind == "nan" else [np.inf, -np.inf]
            values.reshape(-1)[indices] = np.resize(put, count)
        case _:
            pass
    return np.asarray(values, dtype)  # numpy's arithmetic makes no array of a scalar


def like_constant(constant: np.ndarray, seed: int) -> np.ndarray:
    """Return random numbers of the size of a constant of the model.

    Weights of zero or one hide what a kernel does with them. Integers stay: they may be packed
    numbers, indices or sizes.
    """
    if not is_floating(constant.dtype) or not constant.size:
        return constant
    known = constant.astype(np.float64)
    values = np.random.default_rng(seed).standard_normal(constant.shape)
    spread = float(known.std()) or float(np.abs(known).max()) or 1.0
    values = known.mean() + values * spread
    if known.any() and (known >= 0).all():
        values = np.abs(values)
    return np.asarray(values, constant.dtype)


def in_rows(indices: np.ndarray, count: int) -> np.ndarray:
    """Return indices of `count` rows for a Gather: others have no result. Some count back."""
    if not count:
        return indices
    found = indices % count
    found.reshape(-1)[::3] -= count
    return found


def least_integers(op_types: frozenset[str]) -> int:
    """Return the smallest integer to give to a body: a division by 0 ends the process."""
    return 1 if op_types & {"Div", "Mod", "Gather", "BitShift"} else _LEAST


def is_eight_bits(dtype: np.dtype[Any]) -> bool:
    """Return whether a type is a float of eight bits."""
    return is_floating(dtype) and dtype.itemsize == 1
