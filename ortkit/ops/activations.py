"""Activations: what they compute, in float64, and how their parameters follow from values.

An activation here is a function of one number. `recognise` finds it from values alone, at
points that include its kinks, large numbers, infinities and NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ortkit.rewrite.sample import Array, erf, sigmoid

Parameters = tuple[float, ...]

#: Uneven, so that no kink of a wrong constant falls between two points unseen.
_MODERATE = np.array([
    *np.linspace(-9.05, 9.1, 59).tolist(), -30.0, -16.0, -4.0, -3.0, -2.0, -1.0, -0.5, -0.01,
    -1e-3, -0.0, 0.0, 2.0**-7, 0.01, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 16.0, 30.0,
])  # fmt: skip
_EXTREME = np.array([-1e4, 1e4, -1e30, 1e30, -math.inf, math.inf, math.nan])
POINTS = np.concatenate([_MODERATE, _EXTREME])
#: Where values are read to solve for parameters.
PROBES = (-1e4, -2.0, -1.0, 0.0, 2.0**-7, 1.0, 2.0, 1e4)
_PROBED = np.array([int(np.argmax(probe == POINTS)) for probe in PROBES])
#: From this magnitude on a written form may overflow where the activation does not.
LARGE = 1e4
TOLERANCE = 1e-7
"""Relative to the result: the rounding of constants to float32."""
CANCELLATION = 1e-13
"""Relative to the larger of 1 and |x|: the rounding of float64. No more, as a written form may
add a small number lest its result be zero."""


@dataclass(frozen=True)
class Activation:
    """One function, or a family of them with parameters."""

    name: str
    reference: Callable[..., Array]
    """From x, float64 of any shape, and the parameters to the result."""
    source: str
    solve: Callable[[Mapping[float, float], Sequence[float]], Parameters | None] | None = None
    """From the values at `PROBES`, and the numbers that are written, to the parameters that the
    values imply; None where they imply none. Absent: there are no parameters."""


@dataclass(frozen=True)
class Match:
    """An activation with its parameters."""

    name: str
    parameters: Parameters = ()


def gelu(x: Array) -> Array:
    """Return x / 2 * (1 + erf(x / sqrt 2))."""
    return np.asarray(0.5 * x * (1 + erf(x * math.sqrt(0.5))))


def gelu_tanh(x: Array) -> Array:
    """Return GELU with erf approximated by tanh(sqrt(2 / pi) * (x + 0.044715 x^3))."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return np.asarray(0.5 * x * (1 + np.tanh(inner)))


def mish(x: Array) -> Array:
    """Return x * tanh(log(1 + exp x))."""
    return np.asarray(x * np.tanh(np.logaddexp(0.0, x)))


def elu(x: Array, alpha: float) -> Array:
    """Return x, and below zero alpha * (exp x - 1)."""
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def celu(x: Array, alpha: float) -> Array:
    """Return x, and below zero alpha * (exp(x / alpha) - 1)."""
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0) / alpha), x)


def quick_gelu(x: Array, alpha: float) -> Array:
    """Return x * sigmoid(alpha x)."""
    return np.asarray(x * sigmoid(alpha * x))


def _solve_clip(y: Mapping[float, float], _numbers: Sequence[float]) -> Parameters | None:
    low = -math.inf if y[-1e4] == -1e4 else y[-1e4]
    high = math.inf if y[1e4] == 1e4 else y[1e4]
    if not low < high or (low, high) == (-math.inf, math.inf):
        return None
    is_clip = all(y[x] == min(max(x, low), high) for x in (-1.0, 2.0**-7, 1.0, 2.0))
    return (low, high) if is_clip else None


def _solve_quick_gelu(y: Mapping[float, float], _numbers: Sequence[float]) -> Parameters | None:
    if y[0.0] != 0 or not 0 < y[1.0] < 1 or y[1.0] == 0.5:
        return None
    return (math.log(y[1.0] / (1 - y[1.0])),)


def _is_linear(y: Mapping[float, float]) -> bool:
    return all(math.isclose(y[x], x, rel_tol=TOLERANCE) for x in (1.0, 2.0))


def _solve_leaky(y: Mapping[float, float], _numbers: Sequence[float]) -> Parameters | None:
    return (-y[-1.0],) if _is_linear(y) and y[0.0] == 0 and y[-1.0] not in (0, -1) else None


def _solve_elu(y: Mapping[float, float], _numbers: Sequence[float]) -> Parameters | None:
    return (-y[-1e4],) if _is_linear(y) and 0 < -y[-1e4] < LARGE else None


def _solve_selu(y: Mapping[float, float], _numbers: Sequence[float]) -> Parameters | None:
    gamma = y[1.0]
    if gamma <= 0 or not 0 < -y[-1e4] < LARGE or not math.isclose(y[2.0], 2 * gamma):
        return None
    return (-y[-1e4] / gamma, gamma)


def _solve_hard_sigmoid(y: Mapping[float, float], _numbers: Sequence[float]) -> Parameters | None:
    if y[-1e4] != 0 or not 0 < y[0.0] < 1 or not math.isclose(y[1e4], 1, rel_tol=1e-6):
        return None
    return ((y[2.0**-7] - y[0.0]) * 2.0**7, y[0.0])


def _solve_threshold(y: Mapping[float, float], numbers: Sequence[float]) -> Parameters | None:
    if y[1e4] != 1e4 or y[-1e4] != 0:
        return None
    for number in (*numbers, 0.0):
        if all(y[x] == (x if x > number else 0) for x in PROBES):
            return (number,)
    return None


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0.0, x))


GAUSSIAN = "Hendrycks and Gimpel, 'Gaussian Error Linear Units' (2016)"
#: In the order of preference where two are the same function.
ACTIVATIONS: tuple[Activation, ...] = (
    Activation("Gelu", gelu, f"{GAUSSIAN}; ONNX Gelu-20"),
    Activation("FastGelu", gelu_tanh, f"{GAUSSIAN}; ONNX Gelu-20, approximate = tanh"),
    Activation("Mish", mish, "Misra, 'Mish' (2019); ONNX Mish-18"),
    Activation(
        "HardSwish",
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        "Howard et al., 'Searching for MobileNetV3' (2019); ONNX HardSwish-14",
    ),
    Activation("Softplus", _softplus, "Dugas et al. (2000); ONNX Softplus-1"),
    Activation("Softsign", lambda x: x / (1 + np.abs(x)), "ONNX Softsign-1"),
    Activation("Sigmoid", sigmoid, "ONNX Sigmoid-6"),
    Activation("Tanh", np.tanh, "ONNX Tanh-6"),
    Activation(
        "SquaredRelu",
        lambda x: np.square(np.maximum(x, 0)),
        "So et al., 'Primer' (2021), squared ReLU",
    ),
    Activation(
        "Clip", lambda x, low, high: np.clip(x, low, high), "ONNX Clip-6, Relu-6", _solve_clip
    ),
    Activation(
        "QuickGelu", quick_gelu, "Ramachandran et al., 'Swish' (2017); Swish-24", _solve_quick_gelu
    ),
    Activation(
        "LeakyRelu", lambda x, a: np.where(x < 0, a * x, x), "ONNX LeakyRelu-6", _solve_leaky
    ),
    Activation("Elu", elu, "Clevert et al., 'ELU' (2016); ONNX Elu-6", _solve_elu),
    Activation("Celu", celu, "Barron, 'CELU' (2017); ONNX Celu-12", _solve_elu),
    Activation(
        "Selu",
        lambda x, alpha, gamma: gamma * elu(x, alpha),
        "Klambauer et al., 'Self-Normalizing Neural Networks' (2017); ONNX Selu-6",
        _solve_selu,
    ),
    Activation(
        "HardSigmoid",
        lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
        "ONNX HardSigmoid-6",
        _solve_hard_sigmoid,
    ),
    Activation(
        "ThresholdedRelu",
        lambda x, alpha: np.where(x > alpha, x, 0.0),
        "Konda et al., 'Zero-Bias Autoencoders' (2015); ONNX ThresholdedRelu-10",
        _solve_threshold,
    ),
)
_FIXED = tuple(one for one in ACTIVATIONS if one.solve is None)
_SOLVED = tuple(one for one in ACTIVATIONS if one.solve is not None)
_BY_NAME = {one.name: one for one in ACTIVATIONS}
_TABLE = np.stack([one.reference(_MODERATE) for one in _FIXED])
_NEAR = slice(0, len(_MODERATE))
#: Up to this distance, at moderate points, a function counts as close to an activation.
NEAR = 0.08
_GATES = (1.0, -1.0, -2.0, 2.0)
_EXPECTED = [one.reference(np.array(_GATES)).tolist() for one in _FIXED]
#: The farthest that rounding of written constants takes a function, relative to max(1, |x|).
ROUNDING_LIMIT = 3e-4


def points_for(numbers: Sequence[float]) -> Array:
    """Return `POINTS`, then points at and around `numbers`, where a function may have a kink."""
    if not numbers:
        return POINTS
    extra = np.array(numbers)
    around = (extra, extra * (1 - 1e-3), extra * (1 + 1e-3), -extra)
    return np.concatenate([POINTS, *around])


@dataclass(frozen=True)
class Nearest:
    """What comes closest, where nothing is equal."""

    name: str
    distance: float
    factor: float = 1.0
    """What the activation is multiplied by to come this close."""


def recognise(
    points: Array, values: Array, numbers: Sequence[float], slack: Callable[[], Array]
) -> Match | Nearest | None:
    """Return the activation that has `values` at `points`, or the one that comes close.

    Args:
        points: What `points_for(numbers)` returns.
        values: The function's float64 results there.
        numbers: The constants that are written.
        slack: Returns how far rounding of the constants may have moved each value; asked
            only where it decides.
    """
    with np.errstate(all="ignore"):
        # Plain floats: single numbers are looked at, and most functions are none of these.
        probed = dict(zip(PROBES, values[_PROBED].tolist(), strict=True))
        nearest = _nearest(values, probed)
        if nearest is not None and nearest.factor == 1:
            expected = _BY_NAME[nearest.name].reference(points)
            allowed = np.minimum(slack(), ROUNDING_LIMIT * np.maximum(1, np.abs(points)))
            if is_same(points, values, expected, allowed):
                return Match(nearest.name)
        for one in _SOLVED:
            parameters = None if one.solve is None else one.solve(probed, numbers)
            if parameters is None or any(math.isnan(each) for each in parameters):
                continue
            if is_same(points, values, one.reference(points, *parameters), np.zeros(())):
                return Match(one.name, parameters)
    return nearest


def _nearest(values: Array, probed: Mapping[float, float]) -> Nearest | None:
    """Return the closest activation without parameters, or one that this is a multiple of."""
    seen = [probed[x] for x in _GATES]
    nearest: Nearest | None = None
    for at, expected in enumerate(_EXPECTED):
        factor = seen[0] / expected[0]
        pairs = list(zip(seen, expected, strict=True))
        if all(abs(a - b) < NEAR for a, b in pairs):
            factor = 1.0
        elif not all(math.isclose(a, factor * b, rel_tol=1e-3, abs_tol=1e-4) for a, b in pairs):
            continue
        distance = float(np.abs(_TABLE[at] * factor - values[_NEAR]).max())
        if distance < NEAR and (nearest is None or distance < nearest.distance):
            nearest = Nearest(_FIXED[at].name, distance, factor)
    return nearest


def is_same(points: Array, values: Array, expected: Array, allowed: Array) -> bool:
    """Say whether `expected` may stand for `values`: equal, or more accurate.

    At a large point a value that is infinite, or no number, comes of overflow in the written
    form; there the activation itself may be right.
    """
    with np.errstate(all="ignore"):
        size = np.abs(values - expected)
        equal = (values == expected) | (np.isnan(values) & np.isnan(expected))
        large = np.maximum(1, np.abs(points))
        # A zero is exact: how constants are rounded does not move it.
        relative = np.where(expected == 0, 0, TOLERANCE * np.abs(expected) + allowed)
        close = size <= CANCELLATION * large + relative
    lost = np.isnan(values) | (np.isinf(values) & np.isfinite(expected))
    return bool((equal | close | (lost & (np.abs(points) >= LARGE))).all())
