"""What the body of a kernel computes in float64, by onnx's reference evaluator.

For the process that runs kernels: it imports numpy and onnx only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erf
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from ortkit.verify.kernel_inputs import is_floating

_FLOATS = frozenset(
    {
        TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT8E5M2,
    }
)  # fmt: skip


class Reference:
    """A body in float64.

    Every float tensor is float64. A Cast to a float type rounds to that type, as it does in the
    body, and its result is float64 again. Integers and booleans stay as they are.
    """

    def __init__(self, function: onnx.FunctionProto) -> None:
        self._names = list(function.input)
        self._run = ReferenceEvaluator(_promoted(function), new_ops=list(_OPS))

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs, floats in float64.

        Args:
            inputs: Floats in float64, too.

        Raises:
            Exception: Whatever an operator raises that cannot be evaluated.
        """
        with np.errstate(all="ignore"):
            results = self._run.run(None, dict(zip(self._names, inputs, strict=True)), {})
        return [np.asarray(result) for result in results]


def _promoted(function: onnx.FunctionProto) -> onnx.FunctionProto:
    """Return the body with float64 in place of each float type."""
    result = onnx.FunctionProto()
    result.CopyFrom(function)
    del result.node[:]
    for node in function.node:
        copy = result.node.add()
        copy.CopyFrom(node)
        if node.op_type == "Constant":
            _widen_constant(copy)
        elif node.op_type == "Cast":
            (to,) = (one.i for one in node.attribute if one.name == "to")
            if to in _FLOATS:
                name = f"{node.output[0]}/rounded"
                copy.output[0] = name
                again = helper.make_node("Cast", [name], [node.output[0]], to=TensorProto.DOUBLE)
                result.node.append(again)
    return result


def _widen_constant(node: onnx.NodeProto) -> None:
    (attribute,) = node.attribute
    if attribute.name == "value":
        array = numpy_helper.to_array(attribute.t)
    elif attribute.name in ("value_float", "value_floats"):
        numbers = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        array = np.asarray(numbers, np.float32)
    else:
        return
    if is_floating(array.dtype):
        wide = numpy_helper.from_array(array.astype(np.float64))
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("value", wide))


#: Steps of the table of erf, and where it is 1 in float64.
_STEP, _END = 1 / 128, 6.0
_GRID = np.arange(-_END, _END + _STEP, _STEP)
_ERF = np.array([erf(x) for x in _GRID])


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


class Erf(OpRun):
    """erf in float64: onnx's own gives float32."""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (_erf64(x),)


class Gelu(OpRun):
    """x times the distribution function of the normal distribution, or its form with tanh."""

    def _run(self, x: np.ndarray, approximate: str | None = None) -> tuple[np.ndarray]:
        if approximate == "tanh":
            inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
            return (0.5 * x * (1 + np.tanh(inner)),)
        return (0.5 * x * (1 + _erf64(x / np.sqrt(2.0))),)


class Sigmoid(OpRun):
    """1 / (1 + exp(-x)) without overflow."""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        small = np.exp(-np.abs(x))
        return (np.where(x >= 0, 1, small) / (1 + small),)


class Conv(OpRun):
    """Convolution as one matrix product for each tap: neither copies nor loops over pixels."""

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

    def _run(self, x: np.ndarray, like: np.ndarray, **_: object) -> tuple[np.ndarray]:
        return (x.astype(like.dtype),)


_OPS: tuple[type[OpRun], ...] = (Erf, Gelu, Sigmoid, Conv, MaxPool, CastLike)
