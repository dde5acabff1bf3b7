"""Recognising activations from values alone, at points that include kinks, infinities and NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ortkit.analysis.float64_eval import Array
from ortkit.ops.activations.reference import ACTIVATIONS, PROBES, TOLERANCE, Match

#: Uneven, so that no kink of a wrong constant falls between two points unseen.
_MODERATE = np.array([
    *np.linspace(-9.05, 9.1, 59).tolist(), -30.0, -16.0, -4.0, -3.0, -2.0, -1.0, -0.5, -0.01,
    -1e-3, -0.0, 0.0, 2.0**-7, 0.01, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 16.0, 30.0,
])  # fmt: skip
#: Every few magnitudes, as limits and thresholds may be computed from constants.
_SCALES = np.array([
    1e-30, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 0.03, 0.1, 12.0, 50.0, 100.0, 200.0,
    500.0, 1e3, 1e4, 1e5, 1e6, 1e8, 1e12, 1e20, 1e30, math.inf,
])  # fmt: skip
#: What a match is confirmed at: a step of 0.02, irregular against the others.
_DENSE = np.linspace(-11.987, 12.013, 1201)
_BESIDE = (0.9, 0.99, 1 - 1e-3, 1 + 1e-3, 1.01, 1.1)
POINTS = np.concatenate([_MODERATE, _SCALES, -_SCALES, [math.nan]])
_PROBED = np.array([int(np.argmax(probe == POINTS)) for probe in PROBES])
#: From this magnitude on a written form may overflow where the activation does not.
LARGE = 300.0
CANCELLATION = 5e-15
"""Relative to `size_of` a point: the rounding of float64. No more, as a written form may
add a small number lest its result be zero."""

_FIXED = tuple(activation for activation in ACTIVATIONS if activation.solve is None)
_SOLVED = tuple(activation for activation in ACTIVATIONS if activation.solve is not None)
_BY_NAME = {activation.name: activation for activation in ACTIVATIONS}
_TABLE = np.stack([activation.reference(_MODERATE) for activation in _FIXED])
_NEAR = slice(0, len(_MODERATE))
#: Up to this distance, at moderate points, a function counts as close to an activation.
NEAR = 0.08
_GATES = (1.0, -1.0, -2.0, 2.0)
_EXPECTED = [
    dict(zip(_GATES, activation.reference(np.array(_GATES)).tolist(), strict=True))
    for activation in _FIXED
]
#: The farthest that rounding of written constants takes a function, relative to max(1, |x|).
ROUNDING_LIMIT = 3e-4


@dataclass(frozen=True)
class Written:
    """A function of one number as it is written."""

    numbers: Sequence[float]
    """Its constants: there may be kinks at and around them."""
    at: Callable[[Array], Array]
    """From points to the float64 results there."""
    slack: Callable[[Array, Array], Array]
    """From points and results to how far the rounding of the constants may have moved these."""
    is_operator: bool = False
    """Whether an operator with a slope is part of it: what that answers at infinities is meant,
    while a formula of arithmetic may overflow there."""


@dataclass(frozen=True)
class Nearest:
    """What comes closest, where nothing is equal."""

    name: str
    distance: float
    factor: float = 1.0
    """What the activation is multiplied by to come this close."""


def recognise(written: Written) -> Match | Nearest | None:
    """Return the activation that `written` is, or the one that comes close."""
    around = _around(written.numbers)
    points = np.concatenate([POINTS, around]) if around.size else POINTS
    with np.errstate(all="ignore"):
        values = written.at(points)
        # Plain floats: single numbers are looked at, and most functions are none of these.
        probed = dict(zip(PROBES, values[_PROBED].tolist(), strict=True))
        nearest = _nearest(values, probed)
        if nearest is not None and nearest.factor == 1:
            match = Match(nearest.name)
            if _holds(match, written, points, values) and _confirmed(match, written):
                return match
        for activation in _SOLVED:
            parameters = (
                None if activation.solve is None else activation.solve(probed, written.numbers)
            )
            if parameters is None or any(map(math.isnan, parameters)):
                continue
            match = Match(activation.name, parameters)
            if _holds(match, written, points, values) and _confirmed(match, written):
                return match
    return nearest


def _confirmed(match: Match, written: Written) -> bool:
    """Say whether `match` holds between the points as well, where it could have been luck."""
    numbers = [*written.numbers, *filter(math.isfinite, match.parameters)]
    points = np.concatenate([_DENSE, _around(numbers)])
    return _holds(match, written, points, written.at(points))


def _holds(match: Match, written: Written, points: Array, values: Array) -> bool:
    expected = _BY_NAME[match.name].reference(points, *match.parameters)
    if written.is_operator and _is_lost_at_infinity(points, values, expected):
        return False
    if is_same(points, values, expected, np.zeros(())):
        return True
    if match.parameters:
        return False  # solved for: whatever the constants are, they are taken as they are
    limit = ROUNDING_LIMIT * np.maximum(1, np.abs(points))
    return is_same(points, values, expected, np.minimum(written.slack(points, values), limit))


def _is_lost_at_infinity(points: Array, values: Array, expected: Array) -> bool:
    """Say whether a value is NaN at an infinity and the activation is not."""
    return bool((np.isinf(points) & np.isnan(values) & ~np.isnan(expected)).any())


def _around(numbers: Sequence[float]) -> Array:
    centers = np.array(numbers, np.float64)
    return np.concatenate([centers, -centers, *(centers * by for by in _BESIDE)])


def _nearest(values: Array, probed: Mapping[float, float]) -> Nearest | None:
    """Return the closest activation without parameters, or one that this is a multiple of."""
    nearest: Nearest | None = None
    for at, expected in enumerate(_EXPECTED):
        factor = _factor(probed, expected)
        if factor is None:
            continue
        distance = float(np.abs(_TABLE[at] * factor - values[_NEAR]).max())
        if distance < NEAR and (nearest is None or distance < nearest.distance):
            nearest = Nearest(_FIXED[at].name, distance, factor)
    return nearest


def _factor(y: Mapping[float, float], expected: Mapping[float, float]) -> float | None:
    """Return 1 where the values at a few points are near, or what they are a multiple by."""
    if abs(y[1.0] - expected[1.0]) < NEAR and abs(y[-1.0] - expected[-1.0]) < NEAR:
        is_near = abs(y[2.0] - expected[2.0]) < NEAR and abs(y[-2.0] - expected[-2.0]) < NEAR
        return 1.0 if is_near else None
    factor = y[1.0] / expected[1.0]
    for x in (-1.0, 2.0, -2.0):
        if abs(y[x] - factor * expected[x]) > 1e-3 * abs(y[x]) + 1e-4:
            return None
    return factor if math.isfinite(factor) else None


def size_of(points: Array) -> Array:
    """Return |x| from 1 to 100: beyond that functions are straight, and nothing cancels."""
    return np.asarray(np.clip(np.abs(points), 1, 100))


def is_same(points: Array, values: Array, expected: Array, allowed: Array) -> bool:
    """Say whether `expected` may stand for `values`: equal, or more accurate.

    At a large point a value that is no number, or infinite though the point is not, comes of
    overflow in the written form. There the activation itself may be right.
    """
    with np.errstate(all="ignore"):
        size = np.abs(values - expected)
        equal = (values == expected) | (np.isnan(values) & np.isnan(expected))
        relative = np.where(np.isinf(expected), 0, TOLERANCE * np.abs(expected) + allowed)
        close = size <= CANCELLATION * size_of(points) + relative
    lost = np.isnan(values) | (np.isinf(values) & np.isfinite(expected) & np.isfinite(points))
    return bool((equal | close | (lost & (np.abs(points) >= LARGE))).all())
