"""What is in a tensor, and how far two of them are apart, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

#: Elements looked at at a time, to keep float64 copies of large tensors small.
_BLOCK = 1 << 20
_BINS = 10


@dataclass(frozen=True)
class Statistics:
    """What is in one tensor; numbers are of its finite elements, None if there are none."""

    type: str
    shape: tuple[int, ...]
    elements: int
    nan: int
    infinite: int
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    deviation: float | None = None
    """Standard deviation."""
    median: float | None = None
    magnitude: float | None = None
    """Mean of the absolute values."""

    def to_json(self) -> dict[str, object]:
        """Return the fields; what is not finite comes as None, as JSON has no infinity."""
        return _finite({**asdict(self), "shape": list(self.shape)})


@dataclass(frozen=True)
class Distance:
    """How far a tensor is from another one of its shape, over elements finite in both."""

    max_absolute: float
    mean_absolute: float
    median_absolute: float
    max_relative: float | None
    """Over elements that are not zero in the first; None if all are."""
    mean_relative: float | None
    median_relative: float | None
    norm: float
    """L2 norm of the difference."""
    cosine: float | None
    """Of the angle between the two; None if one of them is zero."""
    signal_to_noise_db: float | None
    """10 log10 of the first's mean square over the difference's; None if either is zero."""
    peak_signal_to_noise_db: float | None
    """The same, of the square of the first's largest magnitude."""
    worst: tuple[int, ...]
    """Index of the largest absolute difference."""
    unequal: int
    """How many elements differ at all."""
    not_finite: int
    """How many are NaN or infinite in one of them and not the same in the other."""
    histogram: tuple[tuple[float, ...], tuple[int, ...]]
    """Bounds and counts of the absolute differences."""

    def to_json(self) -> dict[str, object]:
        """Return the fields, as above."""
        bounds, counts = self.histogram
        histogram = {"bounds": list(bounds), "counts": list(counts)}
        return _finite({**asdict(self), "worst": list(self.worst), "histogram": histogram})


def statistics(array: np.ndarray) -> Statistics:
    """Look at a tensor; strings have no numbers."""
    kind = "string" if array.dtype.kind in "OUS" else array.dtype.name
    if kind == "string" or array.size == 0:
        return Statistics(kind, array.shape, array.size, 0, 0)
    flat = np.abs(array).reshape(-1) if array.dtype.kind == "c" else array.reshape(-1)
    nan = infinite = count = 0
    low, high, total, squares, magnitude = np.inf, -np.inf, 0.0, 0.0, 0.0
    shift: float | None = None
    for block in _blocks(flat):
        nan += int(np.isnan(block).sum())
        infinite += int(np.isinf(block).sum())
        numbers = block[np.isfinite(block)]
        if not numbers.size:
            continue
        # Moved by one of them: squares of values far from zero would cancel.
        shift = float(numbers[0]) if shift is None else shift
        count += numbers.size
        low, high = min(low, float(numbers.min())), max(high, float(numbers.max()))
        total += float((numbers - shift).sum())
        squares += float(np.square(numbers - shift).sum())
        magnitude += float(np.abs(numbers).sum())
    if shift is None:
        return Statistics(kind, array.shape, array.size, nan, infinite)
    mean = total / count
    middle = flat if nan + infinite == 0 else flat[np.isfinite(flat.astype(np.float64))]
    return Statistics(
        kind, array.shape, array.size, nan, infinite, low, high, shift + mean,
        float(np.sqrt(max(0.0, squares / count - mean * mean))), _median(middle),
        magnitude / count,
    )  # fmt: skip


def distance(expected: np.ndarray, actual: np.ndarray) -> Distance | None:
    """Compare two tensors of one shape; None where nothing is finite in both, or for strings.

    Real and imaginary parts of complex numbers count as elements.
    """
    if expected.dtype.kind in "OUS" or actual.dtype.kind in "OUS" or expected.size == 0:
        return None
    shape = expected.shape
    if expected.dtype.kind == "c":
        shape = (*shape, 2)
        expected, actual = _parts(expected), _parts(actual)
    sums = _Sums()
    for start, (want, got) in enumerate(
        zip(_blocks(expected.reshape(-1)), _blocks(actual.reshape(-1)), strict=True)
    ):
        sums.add(start * _BLOCK, want, got)
    return sums.distance(shape)


class _Sums:
    """What is added up over blocks."""

    def __init__(self) -> None:
        self.count = self.unequal = self.not_finite = self.worst = 0
        self.largest = -1.0
        self.total = self.squares = self.product = self.first = self.second = self.peak = 0.0
        self.absolute: list[np.ndarray] = []
        self.relative: list[np.ndarray] = []

    def add(self, start: int, want: np.ndarray, got: np.ndarray) -> None:
        finite = np.isfinite(want) & np.isfinite(got)
        same = (want == got) | (np.isnan(want) & np.isnan(got))
        self.unequal += int((~same).sum())
        self.not_finite += int((~same & ~finite).sum())
        if not finite.any():
            return
        with np.errstate(invalid="ignore"):
            difference = np.where(finite, np.abs(want - got), -1)
        at = int(difference.argmax())
        if difference[at] > self.largest:
            self.largest, self.worst = float(difference[at]), start + at
        want, got, difference = want[finite], got[finite], difference[finite]
        self.count += want.size
        self.total += float(difference.sum())
        self.squares += float(np.square(difference).sum())
        self.product += float(want @ got)
        self.first += float(want @ want)
        self.second += float(got @ got)
        self.peak = max(self.peak, float(np.abs(want).max()))
        some = want != 0
        with np.errstate(over="ignore"):
            self.absolute.append(difference.astype(np.float32))
            relative = difference[some] / np.abs(want[some])
            self.relative.append(relative.astype(np.float32))

    def distance(self, shape: tuple[int, ...]) -> Distance | None:
        if self.count == 0:
            return None
        absolute = np.concatenate(self.absolute)
        relative = np.concatenate(self.relative)
        has = relative.size > 0
        lengths = np.sqrt(self.first) * np.sqrt(self.second)
        counts, bounds = np.histogram(absolute, _BINS) if np.isfinite(absolute).all() else ((), ())
        noise = self.squares / self.count
        return Distance(
            self.largest,
            self.total / self.count,
            _median(absolute),
            float(relative.max()) if has else None,
            float(relative.mean(dtype=np.float64)) if has else None,
            _median(relative) if has else None,
            float(np.sqrt(self.squares)),
            float(min(1.0, max(-1.0, self.product / lengths))) if lengths else None,
            _decibels(self.first / self.count, noise),
            _decibels(self.peak**2, noise),
            tuple(int(i) for i in np.unravel_index(self.worst, shape)) if shape else (),
            self.unequal,
            self.not_finite,
            (tuple(map(float, bounds)), tuple(map(int, counts))),
        )


def _finite(fields: dict[str, object]) -> dict[str, object]:
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in fields.items()
    }


def _decibels(signal: float, noise: float) -> float | None:
    return float(10 * np.log10(signal / noise)) if signal > 0 and noise > 0 else None


def _median(array: np.ndarray) -> float:
    """Return the median; of short floats in float32, as a sum of two may overflow them."""
    is_float = array.dtype.kind == "f" and array.dtype.itemsize >= 4
    wide: Any = (
        array if is_float else array.astype(np.float64 if array.itemsize > 2 else np.float32)
    )
    return float(np.median(wide))


def _parts(array: np.ndarray) -> np.ndarray:
    return np.stack([array.real, array.imag], axis=-1)


def _blocks(flat: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK].astype(np.float64)
