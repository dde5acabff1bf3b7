"""What is in a tensor, and how far two of them are apart, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

#: Elements looked at at a time, to keep float64 copies of large tensors small.
_BLOCK = 1 << 20
#: Differences of larger tensors are kept in float32.
_LARGE = 1 << 22
_BINS = 10
_PARTS = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Statistics:
    """What is in one tensor; numbers are of its finite elements, None if there are none."""

    type: str
    shape: tuple[int, ...]
    elements: int
    nan: int
    infinite: int
    minimum: float | None = None
    minimum_at: tuple[int, ...] = ()
    maximum: float | None = None
    maximum_at: tuple[int, ...] = ()
    mean: float | None = None
    deviation: float | None = None
    """Standard deviation."""
    magnitude: float | None = None
    """Mean of the absolute values."""
    median: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    histogram_bounds: tuple[float, ...] = ()
    histogram_counts: tuple[int, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the fields; what is not finite comes as None, as JSON has no infinity."""
        return _plain(asdict(self))


@dataclass(frozen=True)
class Distance:
    """How far a tensor is from another one of its shape, over elements finite in both."""

    absolute: Statistics
    """Of the absolute differences; those that are not finite count as NaN."""
    relative: Statistics | None
    """Over the first's magnitudes; elements that are zero there count as NaN. None if all are."""
    norm: float
    """L2 norm of the difference."""
    cosine: float | None
    """Of the angle between the two; None if one of them is zero."""
    signal_to_noise_db: float | None
    """10 log10 of the first's mean square over the difference's; None if either is zero."""
    peak_signal_to_noise_db: float | None
    """The same, of the square of the first's largest magnitude."""
    unequal: int
    """How many elements differ at all."""
    not_finite: int
    """How many are NaN or infinite in one of them and not the same in the other."""

    def to_json(self) -> dict[str, object]:
        """Return the fields, as above."""
        relative = None if self.relative is None else self.relative.to_json()
        return {**_plain(asdict(self)), "absolute": self.absolute.to_json(), "relative": relative}


def statistics(array: np.ndarray) -> Statistics:
    """Look at a tensor; strings have no numbers, complex numbers those of their magnitudes."""
    kind = "string" if array.dtype.kind in "OUS" else array.dtype.name
    if kind == "string" or array.size == 0:
        return Statistics(kind, array.shape, array.size, 0, 0)
    flat = np.abs(array).reshape(-1) if array.dtype.kind == "c" else array.reshape(-1)
    sums = _Sums()
    for start, block in _blocks(flat):
        sums.add(start, block)
    if sums.count == 0:
        return Statistics(kind, array.shape, array.size, sums.nan, sums.infinite)
    numbers = _sortable(flat)
    if sums.count < array.size:
        numbers = numbers[np.isfinite(numbers)]
    with np.errstate(over="ignore", invalid="ignore"):
        median, p90, p95, p99 = (float(each) for each in np.quantile(numbers, _PARTS))
    counts, bounds = np.histogram(numbers.astype(np.float64, copy=False), _BINS)
    return Statistics(
        kind,
        array.shape,
        array.size,
        sums.nan,
        sums.infinite,
        sums.low,
        _index(sums.low_at, array.shape),
        sums.high,
        _index(sums.high_at, array.shape),
        sums.mean,
        sums.deviation,
        sums.magnitude / sums.count,
        median,
        p90,
        p95,
        p99,
        tuple(map(float, bounds)),
        tuple(map(int, counts)),
    )


def distance(expected: np.ndarray, actual: np.ndarray) -> Distance | None:
    """Compare two tensors of one shape; None where nothing is finite in both, or for strings.

    Real and imaginary parts of complex numbers count as elements.
    """
    if expected.dtype.kind in "OUS" or actual.dtype.kind in "OUS" or expected.size == 0:
        return None
    if expected.dtype.kind == "c":
        expected, actual = _parts(expected), _parts(actual)
    absolute = np.empty(expected.size, np.float64 if expected.size <= _LARGE else np.float32)
    relative = np.empty_like(absolute)
    unequal = not_finite = count = 0
    squares = product = first = second = peak = 0.0
    pairs = zip(_blocks(expected.reshape(-1)), _blocks(actual.reshape(-1)), strict=True)
    for (start, want), (_, got) in pairs:
        finite = np.isfinite(want) & np.isfinite(got)
        same = (want == got) | (np.isnan(want) & np.isnan(got))
        unequal += int((~same).sum())
        not_finite += int((~same & ~finite).sum())
        here = slice(start, start + want.size)
        with np.errstate(all="ignore"):
            difference = np.where(finite, np.abs(want - got), np.nan)
            absolute[here] = difference
            relative[here] = np.where(want != 0, difference / np.abs(want), np.nan)
            want, got, difference = want[finite], got[finite], difference[finite]
            count += want.size
            squares += float(difference @ difference)
            product += float(want @ got)
            first += float(want @ want)
            second += float(got @ got)
            peak = max(peak, float(np.abs(want).max(initial=0.0)))
    if count == 0:
        return None
    lengths = np.sqrt(first) * np.sqrt(second)
    has_angle = bool(np.isfinite(lengths)) and lengths > 0
    relative_statistics = statistics(relative.reshape(expected.shape))
    return Distance(
        statistics(absolute.reshape(expected.shape)),
        None if relative_statistics.maximum is None else relative_statistics,
        float(np.sqrt(squares)),
        min(1.0, max(-1.0, float(product / lengths))) if has_angle else None,
        _decibels(first / count, squares / count),
        _decibels(peak**2, squares / count),
        unequal,
        not_finite,
    )


class _Sums:
    """What is added up over blocks."""

    def __init__(self) -> None:
        self.nan = self.infinite = self.count = 0
        self.low, self.high = np.inf, -np.inf
        self.low_at = self.high_at = 0
        self.shift = self.total = self.squares = self.magnitude = 0.0

    def add(self, start: int, block: np.ndarray) -> None:
        self.nan += int(np.isnan(block).sum())
        self.infinite += int(np.isinf(block).sum())
        finite = np.isfinite(block)
        if not finite.any():
            return
        low, high = np.where(finite, block, np.inf), np.where(finite, block, -np.inf)
        if low.min() < self.low:
            self.low, self.low_at = float(low.min()), start + int(low.argmin())
        if high.max() > self.high:
            self.high, self.high_at = float(high.max()), start + int(high.argmax())
        numbers = block[finite]
        # Moved by one of them: squares of values far from zero would cancel.
        self.shift = self.shift if self.count else float(numbers[0])
        self.count += numbers.size
        with np.errstate(over="ignore"):
            self.total += float((numbers - self.shift).sum())
            self.squares += float(np.square(numbers - self.shift).sum())
            self.magnitude += float(np.abs(numbers).sum())

    @property
    def mean(self) -> float:
        return self.shift + self.total / self.count

    @property
    def deviation(self) -> float:
        moved = self.total / self.count
        return float(np.sqrt(max(0.0, self.squares / self.count - moved * moved)))


def _sortable(flat: np.ndarray) -> np.ndarray:
    """Return numbers whose sums and differences do not overflow their type."""
    if flat.dtype.kind == "f" and flat.itemsize >= 4:
        return flat
    return flat.astype(np.float64 if flat.itemsize > 2 else np.float32)


def _index(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(each) for each in np.unravel_index(index, shape)) if shape else ()


def _plain(fields: dict[str, Any]) -> dict[str, object]:
    """Return fields as JSON has them."""
    return {name: _number(value) for name, value in fields.items()}


def _number(value: Any) -> object:
    if isinstance(value, tuple):
        return [_number(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _decibels(signal: float, noise: float) -> float | None:
    return float(10 * np.log10(signal / noise)) if signal > 0 and noise > 0 else None


def _parts(array: np.ndarray) -> np.ndarray:
    return np.stack([array.real, array.imag], axis=-1)


def _blocks(flat: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield where each block begins, and the block as float64."""
    for start in range(0, flat.size, _BLOCK):
        yield start, flat[start : start + _BLOCK].astype(np.float64)
