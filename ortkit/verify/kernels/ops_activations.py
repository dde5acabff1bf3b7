"""Functions of one value in float64, for `kernels/ops.py`."""

from __future__ import annotations

import math

import numpy as np
from onnx.reference.op_run import OpRun

#: Steps of the table of erf, and where it is 1 in float64.
_STEP, _END = 1 / 128, 6.0
_GRID = np.arange(-_END, _END + _STEP, _STEP)
#: Of the Taylor series around each point of the table: the factors of the powers of the distance.
_SERIES = [
    np.array([math.erf(x) for x in _GRID]),
    *(
        2 / math.sqrt(math.pi) * np.exp(-(_GRID**2)) * polynomial
        for polynomial in (
            np.ones_like(_GRID),
            -_GRID,
            (2 * _GRID**2 - 1) / 3,
            (3 * _GRID - 2 * _GRID**3) / 6,
            (4 * _GRID**4 - 12 * _GRID**2 + 3) / 30,
        )
    ),
]
#: Below it 1 + erf is 0 in float64, too.
_ERFC_END = -27.3
#: Elements at a time: what is computed of them stays in a cache.
_BLOCK = 1 << 14


def _erf64(x: np.ndarray) -> np.ndarray:
    """Return erf by its Taylor series around the nearest point of a table, off by 1e-15."""
    flat = np.ascontiguousarray(x, np.float64).reshape(-1)
    found = np.empty_like(flat)
    for start in range(0, flat.size, _BLOCK):
        found[start : start + _BLOCK] = _erf_of_block(flat[start : start + _BLOCK])
    return found.reshape(np.shape(x))


def _erf_of_block(x: np.ndarray) -> np.ndarray:
    inside = np.clip(np.nan_to_num(x), -_END, _END)
    at = np.rint((inside + _END) / _STEP).astype(np.int64)
    distance = inside - _GRID[at]
    near = _SERIES[-1][at]
    for factors in _SERIES[-2::-1]:
        near = near * distance + factors[at]
    return np.where(np.isnan(x), x, np.clip(near, -1.0, 1.0))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp(0.0, x))


def _one_plus_erf64(x: np.ndarray) -> np.ndarray:
    """Return 1 + erf(x), also where the two cancel: below -6 their sum is 0 in float64."""
    found = np.asarray(1.0 + _erf64(x))
    cancels = (x > _ERFC_END) & (x < -2.0)
    found[cancels] = [math.erfc(-each) for each in x[cancels]]
    return found


class Gelu(OpRun):
    """ONNX Gelu-20."""

    op_domain = ""

    def _run(self, x: np.ndarray, approximate: str | None = None) -> tuple[np.ndarray]:
        if approximate == "tanh":
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
            return (x / (1.0 + np.exp(-2.0 * inner)),)
        return (0.5 * x * _one_plus_erf64(x * math.sqrt(0.5)),)


class Mish(OpRun):
    """ONNX Mish-18."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (x * np.tanh(_softplus(x)),)


class Softplus(OpRun):
    """ONNX Softplus-1."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (_softplus(x),)


class Softsign(OpRun):
    """ONNX Softsign-22."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (x / (1.0 + np.abs(x)),)


class Swish(OpRun):
    """ONNX Swish-24."""

    op_domain = ""

    def _run(self, x: np.ndarray, alpha: float | None = None) -> tuple[np.ndarray]:
        return (x / (1.0 + np.exp(-(1.0 if alpha is None else alpha) * x)),)


class HardSwish(OpRun):
    """ONNX HardSwish-14."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (x * np.clip(x / 6 + 0.5, 0.0, 1.0),)


class Erf(OpRun):
    """erf in float64: onnx's own gives float32."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (_erf64(x),)


class Sigmoid(OpRun):
    """1 / (1 + exp(-x)) without overflow."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        small = np.exp(-np.abs(x))
        return (np.where(x >= 0, 1, small) / (1 + small),)
