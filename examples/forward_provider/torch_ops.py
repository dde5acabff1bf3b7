"""Operators of ONNX in torch: `function(*inputs, **attributes)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from examples.forward_provider.provider import sizes

Tensor = Any


def take_in(array: Any) -> Tensor:
    """Return an input as a tensor over the same memory."""
    return torch.from_dlpack(array)


def conv(
    x: Tensor, weight: Tensor, bias: Tensor = None, *, strides: Any = None, pads: Any = None,
    dilations: Any = None, group: int = 1, auto_pad: str = "NOTSET", kernel_shape: Any = None,
) -> Tensor:  # fmt: skip
    rank = x.ndim - 2
    pads = list(pads or [0] * (2 * rank))
    # ONNX has the begins of all axes, then their ends; torch both of the last axis first.
    both = [pads[side + axis] for axis in reversed(range(rank)) for side in (0, rank)]
    padded = torch.nn.functional.pad(x, both)
    function = {
        1: torch.nn.functional.conv1d,
        2: torch.nn.functional.conv2d,
        3: torch.nn.functional.conv3d,
    }[rank]
    ones = [1] * rank
    return function(
        padded, weight, bias, tuple(strides or ones), 0, tuple(dilations or ones), group
    )


def gemm(
    a: Tensor, b: Tensor, c: Tensor = None, *, alpha: float = 1, beta: float = 1,
    transA: int = 0, transB: int = 0,
) -> Tensor:  # fmt: skip
    product = alpha * ((a.T if transA else a) @ (b.T if transB else b))
    return product if c is None else product + beta * c


def layer_norm(
    x: Tensor, scale: Tensor, bias: Tensor = None, *, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:  # fmt: skip
    shape = x.shape[axis % x.ndim :]
    normal = torch.nn.functional.layer_norm(x, shape, eps=epsilon) * scale
    return normal if bias is None else normal + bias


OPS: dict[str, Callable[..., Tensor]] = {
    "Abs": torch.abs,
    "Add": torch.add,
    "Concat": lambda *tensors, axis: torch.cat(tensors, axis),
    "Conv": conv,
    "Div": torch.div,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Gemm": gemm,
    "LayerNormalization": layer_norm,
    "MatMul": torch.matmul,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Pow": torch.pow,
    "Relu": torch.relu,
    "Reshape": lambda x, shape, *, allowzero=0: x.reshape(
        shape.tolist() if allowzero else sizes(x.shape, shape)
    ),
    "Sigmoid": torch.sigmoid,
    "Softmax": lambda x, *, axis=-1: torch.softmax(x, axis),
    "Sqrt": torch.sqrt,
    "Sub": torch.sub,
    "Tanh": torch.tanh,
    "Transpose": lambda x, *, perm=None: (
        x.permute(perm) if perm is not None else x.permute(*reversed(range(x.ndim)))
    ),
}
