"""Layers that several architectures share, in each spelling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from onnx import numpy_helper

if TYPE_CHECKING:
    from models.builder import Dim, Tape


def linear(
    b: Tape, x: str, name: str, fan_in: int, width: int, *, bias: bool = True, gain: float = 1.0
) -> str:
    """Multiply [..., fan_in] by a matrix and add a bias."""
    matrix = b.draw(f"{name}.weight", fan_in, width, scale=gain / math.sqrt(fan_in))
    with b.scope(name):
        product = b.op("MatMul", x, b.folded_weight("MatMul", matrix))
        if not bias:
            return product
        offset = b.weight(f"{name}.bias", width, scale=0.1)
        # TorchScript puts the bias first, the newer exporter the product.
        swapped = b.spelling.has_constant_nodes
        return b.op("Add", offset, product) if swapped else b.op("Add", product, offset)


def gemm(b: Tape, x: str, name: str, fan_in: int, width: int) -> str:
    """Multiply a matrix [rows, fan_in] by a transposed weight and add a bias, in one op."""
    weight = b.weight(f"{name}.weight", width, fan_in, scale=1 / math.sqrt(fan_in))
    bias = b.weight(f"{name}.bias", width, scale=0.1)
    with b.scope(name):
        return b.op("Gemm", x, weight, bias, alpha=1.0, beta=1.0, transB=1)


def embedding(b: Tape, ids: str, name: str, rows: int, width: int) -> str:
    """Look up rows of a table."""
    table = b.weight(f"{name}.weight", rows, width, scale=0.7)
    with b.scope(name):
        return b.op("Gather", table, ids)


def layer_norm(b: Tape, x: str, name: str, width: int, epsilon: float) -> str:
    """Normalize the last axis; before opset 17 out of nine smaller ops."""
    scale = b.weight(f"{name}.weight", width, scale=0.1, mean=1.0)
    offset = b.weight(f"{name}.bias", width, scale=0.1)
    with b.scope(name):
        if b.spelling.opset >= 17:
            return b.op("LayerNormalization", x, scale, offset, axis=-1, epsilon=epsilon)
        centered = b.op("Sub", x, b.reduce_mean(x, -1))
        variance = b.reduce_mean(b.op("Pow", centered, b.scalar(2.0)), -1)
        deviation = b.op("Sqrt", b.op("Add", variance, b.scalar(epsilon)))
        return b.op("Add", b.op("Mul", b.op("Div", centered, deviation), scale), offset)


def group_norm(b: Tape, x: str, name: str, width: int, groups: int, epsilon: float) -> str:
    """Normalize groups of channels; before opset 21 as instances of a reshaped image."""
    drawn = [b.draw(f"{name}.weight", width, scale=0.1, mean=1.0)]
    drawn.append(b.draw(f"{name}.bias", width, scale=0.1))
    with b.scope(name):
        if b.spelling.opset >= 21:
            both = (
                b.parameter(f"{name}.{k}", v)
                for k, v in zip(("weight", "bias"), drawn, strict=True)
            )
            return b.op("GroupNormalization", x, *both, num_groups=groups, epsilon=epsilon)
        flat = b.op("Reshape", x, b.ints(0, groups, -1), allowzero=0)
        ones, zeros = b.const(np.ones(groups, np.float32)), b.const(np.zeros(groups, np.float32))
        flat = b.op("InstanceNormalization", flat, ones, zeros, epsilon=epsilon)
        whole = b.op("Reshape", flat, b.op("Shape", x), allowzero=0)
        scale, shift = (value.reshape(width, 1, 1) for value in drawn)
        scaled = b.op("Mul", whole, b.folded_weight("Mul", scale))
        return b.op("Add", scaled, b.folded_weight("Add", shift))


def rms_norm(b: Tape, x: str, name: str, width: int, epsilon: float) -> str:
    """Divide the last axis by its root mean square and scale it, weight first."""
    scale = b.weight(f"{name}.weight", width, scale=0.1, mean=1.0)
    if b.spelling.opset >= 23:
        return b.op("RMSNormalization", x, scale, axis=-1, epsilon=epsilon, stash_type=1)
    with b.scope(name):
        mean = b.reduce_mean(b.op("Pow", x, b.scalar(2.0)), -1)
        root = b.op("Sqrt", b.op("Add", mean, b.scalar(epsilon)))
        if b.spelling.has_constant_nodes:
            inverse = b.op("Div", b.scalar(1.0), root)
        else:
            inverse = b.op("Reciprocal", root)
        return b.op("Mul", scale, b.op("Mul", x, inverse))


def gelu(b: Tape, x: str) -> str:
    """Apply the exact GELU: one op from opset 20, five through Erf before."""
    if b.spelling.opset >= 20:
        return b.op("Gelu", x, approximate="none")
    erf = b.op("Erf", b.op("Div", x, b.scalar(math.sqrt(2.0))))
    return b.op("Mul", b.op("Mul", x, b.op("Add", erf, b.scalar(1.0))), b.scalar(0.5))


def gelu_tanh(b: Tape, x: str) -> str:
    """Apply GPT-2's GELU out of elementary ops, as every exporter leaves it."""
    half = b.op("Mul", x, b.scalar(0.5))
    cube = b.op("Mul", b.op("Pow", x, b.scalar(3.0)), b.scalar(0.044715))
    inner = b.op("Mul", b.op("Add", x, cube), b.scalar(math.sqrt(2 / math.pi)))
    return b.op("Mul", half, b.op("Add", b.op("Tanh", inner), b.scalar(1.0)))


def silu(b: Tape, x: str) -> str:
    """Multiply by the sigmoid."""
    return b.op("Mul", x, b.op("Sigmoid", x))


def upsample(b: Tape, x: str) -> str:
    """Double height and width by repeating each pixel."""
    scales = b.const(np.array([1, 1, 2, 2], np.float32))
    rule = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return b.op("Resize", x, "", scales, mode="nearest", cubic_coeff_a=-0.75, **rule)


def enlarge(
    b: Tape, x: str, batch: int | Dim, channels: int, height: int, width: int, mode: str = "linear"
) -> str:
    """Resize an image to a known size: `interpolate(size=..., align_corners=False)` of torch."""
    rule: dict[str, str | float] = {"coordinate_transformation_mode": "pytorch_half_pixel"}
    if mode == "nearest":
        rule = {"coordinate_transformation_mode": "asymmetric"}
    if b.spelling.has_constant_nodes:
        kept = b.slice(b.op("Shape", x), b.ints(0), b.ints(2), 0)
        sizes = b.op("Concat", kept, b.ints(height, width), axis=0)
        rule["cubic_coeff_a"] = -0.75
    else:
        sizes = b.shape(batch, channels, height, width)
    return b.op("Resize", x, "", "", sizes, mode=mode, nearest_mode="floor", **rule)


def expand(b: Tape, x: str, shape: str) -> str:
    """Expand to a 1-D shape; TorchScript first replaces every -1 in it by 1."""
    if not b.spelling.has_constant_nodes:
        return b.op("Expand", x, shape)
    shape = b.op("Reshape", shape, b.ints(-1))
    tensor = numpy_helper.from_array(np.array([1], np.int64))
    ones = b.op("ConstantOfShape", b.op("Shape", shape), value=tensor)
    is_kept = b.op("Equal", shape, b.op("Mul", ones, b.scalar(-1)))
    return b.op("Expand", x, b.op("Where", is_kept, ones, shape))
