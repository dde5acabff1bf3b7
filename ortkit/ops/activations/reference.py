"""Activations: what they compute, in float64, and how their parameters follow from values.

An activation here is a function of one number; `ortkit.ops.activations.match` finds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ortkit.analysis.float64_eval import Array, erf, sigmoid

Parameters = tuple[float, ...]

#: Where values are read to solve for parameters.
PROBES = (-1e4, -2.0, -1.0, 0.0, 2.0**-7, 1.0, 2.0, 1e4)
TOLERANCE = 1e-7
"""Relative to the result: the rounding of constants to float32."""


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
    return abs(y[1.0] - 1) <= TOLERANCE and abs(y[2.0] - 2) <= 2 * TOLERANCE


def _solve_leaky(y: Mapping[float, float], _numbers: Sequence[float]) -> Parameters | None:
    # Slopes of 0, 1 and -1 make it Relu, nothing, and Abs.
    is_leaky = _is_linear(y) and y[0.0] == 0 and abs(y[-1.0]) not in (0, 1)
    return (-y[-1.0],) if is_leaky and math.isfinite(y[-1.0]) else None


def _solve_elu(y: Mapping[float, float], _numbers: Sequence[float]) -> Parameters | None:
    return (-y[-1e4],) if _is_linear(y) and 0 < -y[-1e4] < 1e4 else None


def _solve_selu(y: Mapping[float, float], _numbers: Sequence[float]) -> Parameters | None:
    gamma = y[1.0]
    if gamma <= 0 or not 0 < -y[-1e4] < 1e4 or not math.isclose(y[2.0], 2 * gamma):
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
