"""Norms and reductions in float64, for `kernels/ops.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx.reference.op_run import OpRun


def _mean(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    count = math.prod(x.shape[axis] for axis in axes)
    return np.asarray(x.sum(axis=axes, keepdims=True) / np.float64(count))


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


class ArgMax(OpRun):
    """ONNX ArgMax-13; as in ONNX Runtime a NaN in front always wins, and any other never does."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        axis: int | None = None,
        keepdims: int | None = None,
        select_last_index: int | None = None,
    ) -> tuple[np.ndarray]:
        return (_position(x, -np.inf, axis or 0, keepdims != 0, bool(select_last_index)),)


class ArgMin(OpRun):
    """ONNX ArgMin-13; NaN as in ArgMax."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        axis: int | None = None,
        keepdims: int | None = None,
        select_last_index: int | None = None,
    ) -> tuple[np.ndarray]:
        return (_position(x, np.inf, axis or 0, keepdims != 0, bool(select_last_index)),)


def _position(
    x: np.ndarray, last_rank: float, axis: int, has_axis: bool, is_last: bool
) -> np.ndarray:
    """Return where `x` is furthest from `last_rank`, an infinity, along `axis`, as int64."""
    is_nan = np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
    ranked = np.where(is_nan, last_rank, x) if x.dtype.kind == "f" else x
    best = (ranked.max if last_rank < 0 else ranked.min)(axis=axis, keepdims=True)
    is_best = ranked == best
    if is_last:
        found = x.shape[axis] - 1 - np.flip(is_best, axis).argmax(axis=axis, keepdims=True)
    else:
        found = is_best.argmax(axis=axis, keepdims=True)
    found = np.where(is_nan.take([0], axis=axis), 0, found).astype(np.int64)
    return found if has_axis else np.asarray(found.squeeze(axis))


class GroupNormalization(OpRun):
    """ONNX GroupNormalization-21; -18 has a scale and a bias for each group."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        bias: np.ndarray,
        epsilon: float | None = None,
        num_groups: int | None = None,
        stash_type: int | None = None,
    ) -> tuple[np.ndarray]:
        del stash_type  # float64 is wider than any
        assert num_groups is not None
        groups = x.reshape(x.shape[0], num_groups, -1)
        moved = groups - _mean(groups, (2,))
        variance = _mean(moved * moved, (2,))
        normal = moved / np.sqrt(variance + (1e-5 if epsilon is None else epsilon))
        channels = (1, x.shape[1], *[1] * (x.ndim - 2))
        factor, shift = (
            np.repeat(each, x.shape[1] // len(each)).reshape(channels) for each in (scale, bias)
        )
        return (normal.reshape(x.shape) * factor + shift,)


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
        top = x.max(axis=over, keepdims=True, initial=-np.inf)
        moved = np.log(np.exp(x - top).sum(axis=over, keepdims=True)) + top
        return (moved if keepdims != 0 else np.squeeze(moved, over),)
