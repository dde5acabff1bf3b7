"""Whether an output is right: near enough to the reference, or no worse than the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuzz.reference import EPSILON, LARGEST, TINY

#: Errors are measured in epsilons of the element plus what the samples scatter.
ALLOWED = 10.0
#: ONNX Runtime's own error on the same output may be exceeded so many times.
OWN_FACTOR = 4.0


@dataclass(frozen=True)
class Judgement:
    """What came of one output."""

    fault: str
    """Empty if it is right."""
    error: float
    own_error: float
    """ONNX Runtime's, 0 if it has none."""
    judged: int
    """Elements that could be judged, of `elements`."""
    elements: int


def judge(
    dtype: str,
    found: np.ndarray,
    own: np.ndarray | None,
    exact: np.ndarray,
    samples: Sequence[np.ndarray],
) -> Judgement:
    """Compare an output with ONNX Runtime's (None: it cannot run this) and the reference."""
    if own is not None and own.shape != exact.shape:
        own = None  # ONNX Runtime 1.31.1 drops axes from rows without elements
    if found.shape != exact.shape:
        return Judgement(f"shape {found.shape} instead of {exact.shape}", 0, 0, 0, exact.size)
    if dtype not in EPSILON:
        return _judge_integers(found, own, exact, samples)
    kinds = _kind(exact, dtype)
    is_sure = np.ones(exact.shape, bool)
    for sample in samples:
        is_sure &= _kind(sample, dtype) == kinds
    found_kinds = _kind(found.astype(np.float64), dtype)
    own64 = None if own is None else own.astype(np.float64)
    is_wrong = is_sure & (found_kinds != kinds)
    if own64 is not None:
        is_wrong &= found_kinds != _kind(own64, dtype)
    judged = int(is_sure.sum())
    if is_wrong.any():
        return Judgement(_first(is_wrong, found, own, exact), 0, 0, judged, exact.size)
    is_number = is_sure & (kinds == 0) & (found_kinds == 0)
    scale = _scale(exact, samples, dtype, is_number)
    error, at = _error(found.astype(np.float64), exact, scale, is_number)
    own_error = 0.0
    if own64 is not None:
        own_error, _ = _error(own64, exact, scale, is_number & (_kind(own64, dtype) == 0))
    fault = ""
    if error > max(ALLOWED, OWN_FACTOR * own_error):
        where = np.zeros(exact.shape, bool)
        where[at] = True
        fault = f"error {error:.3g}, ONNX Runtime {own_error:.3g}; " + _first(
            where, found, own, exact
        )
    return Judgement(fault, error, own_error, judged, exact.size)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays are equal to the bit, but for the bits of NaN."""
    if one.tobytes() == other.tobytes():
        return True
    if one.shape != other.shape or one.dtype != other.dtype or not _has_nan(one):
        return False
    is_nan = np.isnan(one)
    return np.array_equal(is_nan, np.isnan(other)) and (
        np.where(is_nan, 0, one).tobytes() == np.where(is_nan, 0, other).tobytes()
    )


def _has_nan(array: np.ndarray) -> bool:
    return array.dtype.name in EPSILON and bool(np.isnan(array).any())


def _judge_integers(
    found: np.ndarray, own: np.ndarray | None, exact: np.ndarray, samples: Sequence[np.ndarray]
) -> Judgement:
    is_sure = np.ones(exact.shape, bool)
    for sample in samples:
        is_sure &= sample == exact
    is_wrong = is_sure & (found != exact)
    if own is not None:
        is_wrong &= found != own
    fault = _first(is_wrong, found, own, exact) if is_wrong.any() else ""
    return Judgement(fault, 0.0, 0.0, int(is_sure.sum()), exact.size)


def _kind(x: np.ndarray, dtype: str) -> np.ndarray:
    """Return 0 for a number, 1 and -1 for infinities of `dtype`, 2 for NaN."""
    with np.errstate(invalid="ignore"):
        sign = np.where(np.abs(x) > LARGEST[dtype], np.sign(x), 0)
    return np.where(np.isnan(x), 2, np.where(np.isinf(x), np.sign(x), sign)).astype(np.int8)


def _scale(
    exact: np.ndarray, samples: Sequence[np.ndarray], dtype: str, where: np.ndarray
) -> np.ndarray:
    spread = np.zeros(exact.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        for sample in samples:
            spread = np.maximum(spread, np.where(where, np.abs(sample - exact), 0.0))
        return EPSILON[dtype] * (np.where(where, np.abs(exact), 1.0) + TINY[dtype]) + spread


def _error(
    found: np.ndarray, exact: np.ndarray, scale: np.ndarray, where: np.ndarray
) -> tuple[float, tuple[np.intp, ...]]:
    if not where.any():
        return 0.0, ()
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.where(where, np.abs(found - exact) / scale, 0.0)
    at = np.unravel_index(int(errors.argmax()), errors.shape)
    return float(errors[at]), at


def _first(where: np.ndarray, found: np.ndarray, own: np.ndarray | None, exact: np.ndarray) -> str:
    at = tuple(int(i) for i in np.argwhere(where)[0]) if where.ndim else ()
    theirs = "-" if own is None else repr(own[at].item())
    count = int(where.sum())
    return (
        f"at {list(at)} ({count} of {where.size}): {found[at].item()!r}, "
        f"ONNX Runtime {theirs}, exact {exact[at].item()!r}"
    )
