"""How far a model in a lower precision is from the original: the numbers that a budget is held to.

The error of an output is the norm of the difference over the norm of the output (the inverse of
the signal-to-noise ratio's root), or an eighth of the worst row's if that is more, so that no row
is lost in a large tensor. Rows are along the last axis, or more axes until there are 8 elements;
small ones are judged at a quarter of the rows' root mean square.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import onnx_ir as ir

from ortkit.verify.inputs.feeds import Value

#: The worst row may be this many times as far off as the whole.
ROW_FACTOR = 8.0
#: Rows are judged at this part of the rows' root mean square at least.
ROW_FLOOR = 0.25
#: Larger magnitudes are sentinels, such as those of masks, and no results.
SENTINEL = 1e30
_SHORTEST_ROW = 8
#: An axis of fewer is no choice between classes.
_FEWEST_CLASSES = 3


@dataclass(frozen=True)
class Allowance:
    """What a candidate may do that its original does not: a lowering that the user asked for."""

    computed_in: str = ""
    """A coarser float type that float32 is computed in, as numpy names it; empty if none."""
    stated: float = 0.0
    """An error that the user accepts of each output and of each step."""

    @property
    def half(self) -> ir.DataType | None:
        """The type that constants may be rounded to, if they may be."""
        return ir.DataType[self.computed_in.upper()] if self.computed_in else None


DEFAULT = Allowance()


@dataclass(frozen=True)
class OutputAccuracy:
    """One output, at worst over the input sets."""

    name: str
    error: float
    """What the budget is held to; infinite where a number became none."""
    relative_error: float
    """The norm of the difference over the norm of the output."""
    worst_row: float
    """The same of the worst row."""
    cosine: float
    """Cosine similarity with the original's output."""
    top1: float | None
    """Part of the rows with the same largest element; None where rows are no scores."""

    def to_json(self) -> dict[str, object]:
        """Return the fields; what is infinite or no number comes as None."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


def measure(name: str, expected: Value, actual: Value) -> OutputAccuracy | None:
    """Compare one output with the original's; None where it is no tensor of floats."""
    if not isinstance(expected, np.ndarray) or expected.size == 0:
        return None
    if expected.dtype.kind not in "fV" and expected.dtype.name != "bfloat16":
        return None
    if not isinstance(actual, np.ndarray) or actual.shape != expected.shape:
        return OutputAccuracy(name, math.inf, math.inf, math.inf, 0.0, 0.0)
    want = _rows(expected.astype(np.float64))
    got = _rows(actual.astype(np.float64))
    counts = np.isfinite(want) & (np.abs(want) < SENTINEL)
    want, got = np.where(counts, want, 0.0), np.where(counts, got, 0.0)
    if not np.isfinite(got).all():
        return OutputAccuracy(name, math.inf, math.inf, math.inf, 0.0, 0.0)
    square, error = np.square(want).sum(axis=1), np.square(want - got).sum(axis=1)
    floor = max(ROW_FLOOR**2 * float(square.mean()), np.finfo(np.float64).tiny)
    whole = _ratio(float(error.sum()), float(square.sum()))
    row = math.sqrt(float((error / np.maximum(square, floor)).max()))
    size = math.sqrt(float(square.sum()) * float(np.square(got).sum()))
    cosine = float((want * got).sum()) / size if size else float(whole == 0.0)
    return OutputAccuracy(
        name, max(whole, row / ROW_FACTOR), whole, row, cosine, _top1(expected, want, got)
    )


def worst(found: Iterable[OutputAccuracy]) -> OutputAccuracy:
    """Return the worst of each number of one output over input sets."""
    each = list(found)
    top1 = [output_accuracy.top1 for output_accuracy in each if output_accuracy.top1 is not None]
    return OutputAccuracy(
        each[0].name,
        max(item.error for item in each),
        max(one.relative_error for one in each),
        max(one.worst_row for one in each),
        min(one.cosine for one in each),
        sum(top1) / len(top1) if top1 else None,
    )


def largest_error(found: Sequence[OutputAccuracy]) -> float:
    """Return the error of the worst output; 0 if none can be measured."""
    return max((output_accuracy.error for output_accuracy in found), default=0.0)


def _ratio(error: float, square: float) -> float:
    if error == 0.0:
        return 0.0
    return math.sqrt(error / square) if square > 0 else math.inf


def _rows(array: np.ndarray) -> np.ndarray:
    """Return [rows, n]: the last axis, joined with those before it until it has 8 elements."""
    axis, length = array.ndim, 1
    while axis > 0 and length < _SHORTEST_ROW:
        axis -= 1
        length *= array.shape[axis]
    return array.reshape(-1, length)


def _top1(expected: np.ndarray, want: np.ndarray, got: np.ndarray) -> float | None:
    """Return how often the largest element along the last axis is the same."""
    if not 2 <= expected.ndim <= 3 or expected.shape[-1] < _FEWEST_CLASSES:
        return None
    rows = (-1, expected.shape[-1])
    return float((want.reshape(rows).argmax(axis=1) == got.reshape(rows).argmax(axis=1)).mean())
