"""Operators that onnx.reference lacks, or computes with less than float64."""

from __future__ import annotations

import math

import numpy as np
from onnx.reference.op_run import OpRun

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, x)


def _mean(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    count = math.prod(x.shape[axis] for axis in axes)
    return x.sum(axis=axes, keepdims=True) / np.float64(count)


class Gelu(OpRun):
    """ONNX Gelu-20."""

    op_domain = ""

    def _run(self, x: np.ndarray, approximate: str | None = None) -> tuple[np.ndarray]:
        if approximate == "tanh":
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
            return (x / (1.0 + np.exp(-2.0 * inner)),)
        # 1 + erf(x), of which nothing is left in float64 below about -8.
        return (0.5 * x * _erfc(-x * math.sqrt(0.5)) if x.size else x,)


class Mean(OpRun):
    """ONNX Mean-13; onnx.reference wants the first operand to have the result's shape."""

    op_domain = ""

    def _run(self, *operands: np.ndarray) -> tuple[np.ndarray]:
        return (np.asarray(sum(operands) / np.float64(len(operands))),)


class Sum(OpRun):
    """ONNX Sum-13; as Mean."""

    op_domain = ""

    def _run(self, *operands: np.ndarray) -> tuple[np.ndarray]:
        return (np.asarray(sum(operands)),)


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


class LogSoftmax(OpRun):
    """ONNX LogSoftmax-13; onnx.reference takes the logarithm of a softmax that may be 0."""

    op_domain = ""

    def _run(self, x: np.ndarray, axis: int | None = None) -> tuple[np.ndarray]:
        axis = -1 if axis is None else axis
        moved = x - x.max(axis=axis, keepdims=True)
        return (moved - np.log(np.exp(moved).sum(axis=axis, keepdims=True)),)


class LayerNormalization(OpRun):
    """ONNX LayerNormalization-17, first output."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        bias: np.ndarray | None = None,
        axis: int | None = None,
        epsilon: float | None = None,
        stash_type: int | None = None,
    ) -> tuple[np.ndarray]:
        axes = tuple(range((-1 if axis is None else axis) % x.ndim, x.ndim))
        moved = x - _mean(x, axes)
        variance = _mean(moved * moved, axes)
        result = moved / np.sqrt(variance + (1e-5 if epsilon is None else epsilon)) * scale
        return (result if bias is None else result + bias,)


class RMSNormalization(OpRun):
    """ONNX RMSNormalization-23."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        axis: int | None = None,
        epsilon: float | None = None,
        stash_type: int | None = None,
    ) -> tuple[np.ndarray]:
        axes = tuple(range((-1 if axis is None else axis) % x.ndim, x.ndim))
        square = _mean(x * x, axes)
        return (x / np.sqrt(square + (1e-5 if epsilon is None else epsilon)) * scale,)


class ReduceLogSumExp(OpRun):
    """ONNX ReduceLogSumExp, axes as an attribute or an input."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        given: np.ndarray | None = None,
        axes: object = None,
        keepdims: int | None = None,
        noop_with_empty_axes: int | None = None,
    ) -> tuple[np.ndarray]:
        chosen = given if given is not None else axes
        over = None if chosen is None else tuple(int(axis) for axis in np.atleast_1d(chosen))
        top = x.max(axis=over, keepdims=True)
        moved = np.log(np.exp(x - top).sum(axis=over, keepdims=True)) + top
        return (moved if keepdims != 0 else np.squeeze(moved, over),)


OPS = (
    Gelu, HardSwish, LayerNormalization, LogSoftmax, Mean, Mish, RMSNormalization, ReduceLogSumExp,
    Softplus, Softsign, Sum, Swish,
)  # fmt: skip
