"""Operators that onnx.reference lacks, computes with less than float64, or takes long for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from onnx.reference.op_run import OpRun

#: Steps of the table of erf, and where it is 1 in float64.
_STEP, _END = 1 / 128, 6.0
_GRID = np.arange(-_END, _END + _STEP, _STEP)
_ERF = np.array([math.erf(x) for x in _GRID])


def _erf64(x: np.ndarray) -> np.ndarray:
    """Return erf by its Taylor series around the nearest point of a table, off by 1e-15."""
    inside = np.clip(np.nan_to_num(x), -_END, _END)
    at = np.rint((inside + _END) / _STEP).astype(np.int64)
    a = _GRID[at]
    d = inside - a
    series = 1 + d * (-a + d * ((2 * a**2 - 1) / 3 + d * ((3 * a - 2 * a**3) / 6 + d * (
        (4 * a**4 - 12 * a**2 + 3) / 30))))  # fmt: skip
    near = _ERF[at] + 2 / np.sqrt(np.pi) * np.exp(-(a**2)) * d * series
    return np.where(np.isnan(x), x, np.clip(near, -1.0, 1.0))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp(0.0, x))


def _mean(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    count = math.prod(x.shape[axis] for axis in axes)
    return np.asarray(x.sum(axis=axes, keepdims=True) / np.float64(count))


class Gelu(OpRun):
    """ONNX Gelu-20."""

    op_domain = ""

    def _run(self, x: np.ndarray, approximate: str | None = None) -> tuple[np.ndarray]:
        if approximate == "tanh":
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
            return (x / (1.0 + np.exp(-2.0 * inner)),)
        return (0.5 * x * (1.0 + _erf64(x * math.sqrt(0.5))),)


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
        del stash_type  # float64 is wider than any
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
        del stash_type  # float64 is wider than any
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
        axes: Sequence[int] | None = None,
        keepdims: int | None = None,
        noop_with_empty_axes: int | None = None,
    ) -> tuple[np.ndarray]:
        del noop_with_empty_axes  # regions name their axes
        chosen = given if given is not None else axes
        over = None if chosen is None else tuple(int(axis) for axis in np.atleast_1d(chosen))
        top = x.max(axis=over, keepdims=True)
        moved = np.log(np.exp(x - top).sum(axis=over, keepdims=True)) + top
        return (moved if keepdims != 0 else np.squeeze(moved, over),)


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


class Conv(OpRun):
    """Convolution as one matrix product for each tap: neither copies nor loops over pixels."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        w: np.ndarray,
        b: np.ndarray | None = None,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[np.ndarray]:
        del kernel_shape
        if auto_pad not in (None, "NOTSET"):
            raise NotImplementedError(f"Conv with auto_pad={auto_pad}")
        rank, groups = x.ndim - 2, group or 1
        pads = pads or [0] * (2 * rank)
        around = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
        padded, apart = np.pad(x, around), _ones(dilations, rank)
        seen = _windows(padded, w.shape[2:], apart, _ones(strides, rank))
        size, rows = seen.shape[2 : 2 + rank], w.shape[0] // groups
        result = np.zeros((x.shape[0], groups, rows, int(np.prod(size))))
        depth = w.shape[1]
        for tap in np.ndindex(*w.shape[2:]):
            at = tuple(t * d for t, d in zip(tap, apart, strict=True))
            pixels = seen[(..., *at)].reshape(x.shape[0], groups, depth, -1)
            factor = w[(..., *tap)].reshape(groups, rows, depth)
            result += factor * pixels if depth == rows == 1 else factor @ pixels
        result = result.reshape(x.shape[0], w.shape[0], *size)
        return (result if b is None else result + b.reshape(-1, *[1] * rank),)


class MaxPool(OpRun):
    """The largest value of each window, all windows at once; NaN where a window has one."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] = (),
        pads: Sequence[int] | None = None,
        storage_order: int | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[np.ndarray]:
        del storage_order
        if auto_pad not in (None, "NOTSET") or ceil_mode:
            raise NotImplementedError(f"MaxPool with auto_pad={auto_pad}, ceil_mode={ceil_mode}")
        rank = x.ndim - 2
        pads = pads or [0] * (2 * rank)
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        around = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
        padded = np.pad(x, around, constant_values=lowest)
        apart = _ones(dilations, rank)
        windows = _windows(padded, kernel_shape, apart, _ones(strides, rank))
        taps: tuple[Any, ...] = (..., *(slice(None, None, step) for step in apart))
        return (windows[taps].max(axis=tuple(range(-rank, 0))),)


def _windows(
    x: np.ndarray, kernel: Sequence[int], dilations: Sequence[int], strides: Sequence[int]
) -> np.ndarray:
    """Return a view [N, C, positions..., taps between the first and the last...]."""
    rank = len(kernel)
    reach = [1 + (n - 1) * d for n, d in zip(kernel, dilations, strict=True)]
    seen = sliding_window_view(x, reach, tuple(range(2, 2 + rank)))
    return seen[(slice(None), slice(None), *(slice(None, None, s) for s in strides))]


def _ones(values: Sequence[int] | None, count: int) -> Sequence[int]:
    return values or [1] * count


class CastLike(OpRun):
    """A conversion to the type of another tensor; floats are float64 in both."""

    op_domain = ""

    def _run(self, x: np.ndarray, like: np.ndarray, **_: object) -> tuple[np.ndarray]:
        return (x.astype(like.dtype),)


OPS: tuple[type[OpRun], ...] = (
    CastLike, Conv, Erf, Gelu, HardSwish, LayerNormalization, LogSoftmax, MaxPool, Mean, Mish,
    RMSNormalization, ReduceLogSumExp, Sigmoid, Softplus, Softsign, Sum, Swish,
)  # fmt: skip
