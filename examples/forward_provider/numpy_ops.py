"""Operators of ONNX in numpy: `function(*inputs, **attributes)`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from examples.forward_provider.provider import sizes

Array = Any
_erf = np.vectorize(math.erf, otypes=[np.float64])


def take_in(array: Array) -> Array:
    """Return an input as this library's own."""
    return array


def erf(x: Array) -> Array:
    return _erf(x).astype(x.dtype) if x.size else x


def gemm(
    a: Array, b: Array, c: Array = None, *, alpha: float = 1, beta: float = 1,
    transA: int = 0, transB: int = 0,
) -> Array:  # fmt: skip
    product = (a.T if transA else a) @ (b.T if transB else b)
    scaled = product * a.dtype.type(alpha)
    return scaled if c is None else scaled + a.dtype.type(beta) * c


def layer_norm(
    x: Array, scale: Array, bias: Array = None, *, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Array:  # fmt: skip
    axes = tuple(range(axis % x.ndim, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    variance = (centred * centred).mean(axes, keepdims=True)
    normal = centred / np.sqrt(variance + x.dtype.type(epsilon)) * scale
    return normal if bias is None else normal + bias


def softmax(x: Array, *, axis: int = -1) -> Array:
    exponentials = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    return exponentials / exponentials.sum(axis, keepdims=True)


OPS: dict[str, Callable[..., Array]] = {
    "Abs": np.abs,
    "Add": np.add,
    "Concat": lambda *arrays, axis: np.concatenate(arrays, axis),
    "Div": np.divide,
    "Erf": erf,
    "Exp": np.exp,
    "Gemm": gemm,
    "LayerNormalization": layer_norm,
    "MatMul": np.matmul,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Pow": np.power,
    "Relu": lambda x: np.maximum(x, 0),
    "Reshape": lambda x, shape, *, allowzero=0: x.reshape(
        shape.tolist() if allowzero else sizes(x.shape, shape)
    ),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softmax": softmax,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
    "Tanh": np.tanh,
    "Transpose": lambda x, *, perm=None: np.transpose(x, perm),
}
