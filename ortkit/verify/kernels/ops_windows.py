"""Convolution and pooling in float64, for `kernels/ops.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from onnx.reference.op_run import OpRun


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
        padded, steps = np.pad(x, around), _ones(dilations, rank)
        seen = _windows(padded, w.shape[2:], steps, _ones(strides, rank))
        size, rows = seen.shape[2 : 2 + rank], w.shape[0] // groups
        result = np.zeros((x.shape[0], groups, rows, int(np.prod(size))))
        depth = w.shape[1]
        for tap in np.ndindex(*w.shape[2:]):
            at = tuple(t * d for t, d in zip(tap, steps, strict=True))
            pixels = seen[(..., *at)].reshape(x.shape[0], groups, depth, -1)
            factor = w[(..., *tap)].reshape(groups, rows, depth)
            result += factor * pixels if depth == rows == 1 else factor @ pixels
        result = result.reshape(x.shape[0], w.shape[0], *size)
        return (result if b is None else result + b.reshape(-1, *[1] * rank),)


class ConvInteger(Conv):
    """Convolution of bytes: exact sums, and zero points around the image."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        x: np.ndarray,
        w: np.ndarray,
        x_zero: np.ndarray | None = None,
        w_zero: np.ndarray | None = None,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[np.ndarray]:
        moved = x.astype(np.float64) - (0 if x_zero is None else x_zero)
        weight = w.astype(np.float64)
        if w_zero is not None:
            weight -= w_zero.reshape(-1, *[1] * (w.ndim - 1))
        given = auto_pad, dilations, group, kernel_shape, pads, strides
        (result,) = super()._run(moved, weight, None, *given)
        return (result.astype(np.int32),)


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
        steps = _ones(dilations, rank)
        windows = _windows(padded, kernel_shape, steps, _ones(strides, rank))
        taps: tuple[Any, ...] = (..., *(slice(None, None, step) for step in steps))
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
