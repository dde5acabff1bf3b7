"""Whether what a kernel gives is as near to its body in float64 as its body is.

For the process that runs kernels: it imports numpy and its types only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import ml_dtypes
import numpy as np

from ortkit.verify.kernels.errors import Errors, nearest
from ortkit.verify.kernels.inputs import is_floating
from ortkit.verify.rows import as_rows
from ortkit.verify.tolerances import TOLERANCES

#: Epsilons of the type that a kernel computes in, beyond that: its exp, erf, tanh and the like are
#: good to 5 units in the last place (docs/concepts/kernels.md, "Accuracy") where ONNX Runtime's
#: are to 1. And one of the result's type, for a rounding that falls to the other neighbour.
FEW_ULPS = 4.0
#: A body that is off by more than this part of a row is no measure of what its kernel may be.
_DOUBTFUL = 2.0**-6
#: The finest type that kernels compute a narrower one in.
_COMPUTED_IN = "float32"
#: Runs of the reference with inputs moved by roundings, where a result is near a threshold.
_MOVED_RUNS = 8

Moved = Callable[[float, int], Sequence[np.ndarray] | None]
"""The reference's outputs with an error of up to this many epsilons in each rounding, by a seed;
None where it cannot be run so."""


@dataclass(frozen=True)
class Found:
    """The comparison of one output."""

    error: float = 0.0
    """Of the kernel, in epsilons of the result's type, over the scale of a row."""
    body_error: float = 0.0
    """Of the body in working precision."""
    ratio: float = 0.0
    """The error as a part of what is allowed."""
    reason: str = ""
    """What is wrong, empty if nothing is."""


def judge_output(
    index: int,
    reference: np.ndarray,
    body: np.ndarray,
    got: np.ndarray,
    *,
    roundings: float,
    moved: Moved,
) -> Found:
    """Compare one output of a kernel.

    Args:
        index: Which output.
        reference: The body in float64.
        body: The body in working precision.
        got: The kernel's.
        roundings: How many times its body's roundings the kernel makes.
        moved: Says where the reference is near a threshold.
    """
    if not is_floating(body.dtype):
        return _judge_integers(index, reference, body, got, moved)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = reference.astype(body.dtype).astype(np.float64)
    wide = _Wide(reference, rounded, body.astype(np.float64), got.astype(np.float64))
    problem = "" if wide.is_finite else _specials(index, wide, moved)
    if problem:
        return Found(np.inf, reason=problem)
    return _judge_floats(index, wide, body.dtype.name, roundings, moved)


@dataclass(frozen=True)
class _Wide:
    """What is compared, in float64."""

    reference: np.ndarray
    rounded: np.ndarray
    """The reference, rounded to the output's type."""
    body: np.ndarray
    got: np.ndarray

    @cached_property
    def is_compared(self) -> np.ndarray:
        """Where all of them are finite."""
        finite = (np.isfinite(each) for each in (self.rounded, self.body, self.got))
        return np.asarray(np.logical_and.reduce(list(finite)))

    @property
    def is_finite(self) -> bool:
        """Whether all elements are."""
        return bool(self.is_compared.all())

    def rows(self, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return values as rows of one shape, 0 for what is not compared."""
        kept = values if self.is_finite else np.where(self.is_compared, values, 0.0)
        return np.asarray(kept.reshape(shape))


def _specials(index: int, wide: _Wide, moved: Moved) -> str:
    """Say where a NaN or an infinity stands that neither form of the body has.

    Elements where roundings decide between a number and these say nothing.
    """
    found, known = _classes(wide.got), _classes(wide.body)
    wrong = (found != known) & (found != _classes(wide.rounded))
    if wrong.any():
        for outputs in _moved_runs(moved, FEW_ULPS):
            wrong &= _classes(outputs[index]) == known
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{wide.got[at]} instead of {wide.body[at]} at {list(at)}"


_FINITE, _INFINITE, _MINUS_INFINITE, _NAN = range(4)


def _classes(wide: np.ndarray) -> np.ndarray:
    classes = np.where(np.isnan(wide), _NAN, _FINITE)
    return np.where(np.isinf(wide), np.where(wide > 0, _INFINITE, _MINUS_INFINITE), classes)


def _judge_floats(index: int, wide: _Wide, dtype: str, roundings: float, moved: Moved) -> Found:
    epsilon = TOLERANCES[dtype].epsilon
    least = float(ml_dtypes.finfo(dtype).smallest_normal)  # type: ignore[no-untyped-call]
    few = FEW_ULPS * min(1.0, TOLERANCES[_COMPUTED_IN].epsilon / epsilon) + 1.0
    if not wide.got.size:
        return Found()
    leading, rows = as_rows(wide.reference)
    shape = rows.shape
    want, known, result = (
        wide.rows(values, shape) for values in (wide.reference, wide.body, wide.got)
    )
    noise = Errors.of(want, known, epsilon, least)
    own = noise.worst
    guides = [want]
    if own * epsilon > _DOUBTFUL:  # the reference is another function, or the body is no guide
        guides, noise = [want, known], Errors.of(known, known, epsilon, least)
    beside = [Errors.of(guide, result, epsilon, least) for guide in guides]
    errors, ratios = nearest(beside, noise, roundings, few)
    if (ratios <= 1).all():
        return Found(errors.worst / roundings, own, float(ratios.max()))
    # A step of a quantization, or a difference of large terms, in the body itself.
    moves = [
        Errors.of(want, wide.rows(outputs[index], shape), epsilon, least)
        for outputs in _moved_runs(moved, 1.0)
    ]
    errors, ratios = nearest(beside, noise, roundings, few, moves)
    row = int(ratios.argmax())
    found = Found(float(errors.relative[row]) / roundings, own, float(ratios[row]))
    if found.ratio <= 1:
        return found
    at = [int(i) for i in np.unravel_index(row, leading)] if leading else []
    where = f" in row {at}" if at else ""
    reason = (
        f"off by {errors.relative[row]:.4g} epsilons of {dtype}{where}, {found.ratio:.3g} times "
        f"what is allowed where its body is off by {own:.4g}"
    )
    return replace(found, reason=reason)


def _judge_integers(
    index: int, reference: np.ndarray, body: np.ndarray, got: np.ndarray, moved: Moved
) -> Found:
    wrong = (got != body) & (got != reference)
    if not wrong.any():
        return Found()
    for outputs in _moved_runs(moved, FEW_ULPS):
        wrong &= outputs[index] == reference
    if not wrong.any():
        return Found()
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = f"{int(wrong.sum())} of {wrong.size} elements differ, first at {list(at)}: "
    return Found(np.inf, reason=f"{count}{got[at]} instead of {body[at]}")


def _moved_runs(moved: Moved, epsilons: float) -> list[Sequence[np.ndarray]]:
    runs = (moved(epsilons, seed) for seed in range(_MOVED_RUNS))
    return [outputs for outputs in runs if outputs is not None]
