"""Products with weights of a few bits, for `kernels/ops.py`; and what they may round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference.op_run import OpRun

from ortkit.verify.tolerances import TOLERANCES

MICROSOFT = "com.microsoft"
# The largest int8 that ONNX Runtime rounds to, and the largest number of a block that is not 0, at
# least.
_LARGEST, _LEAST = 127.0, 1e-30

# The version of ONNX in which axes of ReduceMax became an input.
_AXES_ARE_AN_INPUT = 18

Rounding = Literal["bfloat16", "int8"]
# By accuracy level of MatMulNBits: what its left operand may be rounded to; to int8 with a scale
# for each block.
_ROUNDINGS: dict[int, Rounding] = {3: "bfloat16", 4: "int8"}


class DequantizeLinear(OpRun):
    """ONNX DequantizeLinear-10 to 25, in float64; onnx.reference has none before opset 19."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        zero: np.ndarray | None = None,
        axis: int = 1,
        block_size: int = 0,
        **_: object,
    ) -> tuple[np.ndarray]:
        scales = _spread(scale.astype(np.float64), x, axis, block_size)
        if zero is None:
            return (x.astype(np.float64) * scales,)
        zeros = _spread(zero.astype(np.float64), x, axis, block_size)
        return ((x.astype(np.float64) - zeros) * scales,)


class QLinearAdd(OpRun):
    """A sum of two quantized tensors, rounded to a grid of its own."""

    op_domain = MICROSOFT

    def _run(self, *operands: np.ndarray) -> tuple[np.ndarray]:
        a, scale_a, zero_a, b, scale_b, zero_b, scale, zero = operands
        moved = [a.astype(np.float64) - zero_a, b.astype(np.float64) - zero_b]
        total = (moved[0] * scale_a + moved[1] * scale_b) / scale
        return (_rounded(total, zero),)


class QLinearMul(OpRun):
    """A product of two quantized tensors, rounded to a grid of its own."""

    op_domain = MICROSOFT

    def _run(self, *operands: np.ndarray) -> tuple[np.ndarray]:
        a, scale_a, zero_a, b, scale_b, zero_b, scale, zero = operands
        moved = [a.astype(np.float64) - zero_a, b.astype(np.float64) - zero_b]
        total = moved[0] * moved[1] * (np.float64(scale_a) * scale_b / scale)
        return (_rounded(total, zero),)


class QLinearGlobalAveragePool(OpRun):
    """Means of quantized images, rounded to a grid of their own."""

    op_domain = MICROSOFT

    def _run(
        self, *operands: np.ndarray, channels_last: int = 0, **_: object
    ) -> tuple[np.ndarray]:
        x, scale_x, zero_x, scale, zero = operands
        axes = (1, 2) if channels_last else (2, 3)
        means = x.astype(np.float64).mean(axes, keepdims=True) - zero_x
        return (_rounded(means * (np.float64(scale_x) / scale), zero),)


def _rounded(steps: np.ndarray, zero: np.ndarray) -> np.ndarray:
    info = np.iinfo(zero.dtype)
    return np.asarray(np.clip(np.rint(steps) + zero, info.min, info.max), zero.dtype)


def _spread(factors: np.ndarray, x: np.ndarray, axis: int, block_size: int) -> np.ndarray:
    """Return factors of a tensor, of its slices along an axis or of blocks of these, for `x`."""
    if factors.size == 1:
        return factors.reshape(())
    if factors.ndim == 1 and not block_size:
        return factors.reshape([-1 if at == axis % x.ndim else 1 for at in range(x.ndim)])
    many = np.repeat(factors, block_size, axis)
    return np.take(many, np.arange(x.shape[axis]), axis)


class MatMulNBits(OpRun):
    """A product with a matrix of 2, 4 or 8 bits, with a scale for each block of its columns."""

    op_domain = MICROSOFT

    def _run(
        self,
        x: np.ndarray,
        weight: np.ndarray,
        scale: np.ndarray,
        zero: np.ndarray | None = None,
        order: np.ndarray | None = None,
        bias: np.ndarray | None = None,
        **attributes: int,
    ) -> tuple[np.ndarray]:
        if order is not None:
            raise NotImplementedError("MatMulNBits with g_idx")
        bits, block = attributes.get("bits") or 4, attributes["block_size"]
        depth, columns = attributes["K"], attributes["N"]
        count = -(-depth // block)
        numbers = _unpacked(weight.reshape(columns, count, -1), bits).astype(np.float64)
        zeros = np.array(2.0 ** (bits - 1))
        if zero is not None:
            rows = zero.reshape(columns, -1)
            rows = _unpacked(rows, bits) if zero.dtype == np.uint8 else rows
            zeros = rows[:, :count, None].astype(np.float64)
        matrix = (numbers - zeros) * scale.reshape(columns, count, 1)
        result = x @ matrix.reshape(columns, -1)[:, :depth].T
        return (result if bias is None else result + bias,)


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Return numbers of a few bits: uint8 [..., bytes] to [..., n], the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = packed[..., None] >> shifts & np.uint8(2**bits - 1)
    return np.asarray(numbers.reshape(*packed.shape[:-1], -1))


def rounded_as_allowed(function: onnx.FunctionProto) -> onnx.FunctionProto:
    """Return a body whose MatMulNBits round their left operand, if their accuracy level says so.

    ONNX Runtime does that where the weight is a constant, and not where it is none, as in a model
    of one kernel.
    """
    result = onnx.FunctionProto()
    result.CopyFrom(function)
    del result.node[:]
    version = max(opset.version for opset in function.opset_import if not opset.domain)
    for node in function.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        rounding = allowed_rounding(node)
        if rounding is not None:
            name = f"{node.output[0]}/rounded"
            added = _to_bfloat16(node, name)
            if rounding == "int8":
                added = _to_int8(node, name, has_axes_input=version >= _AXES_ARE_AN_INPUT)
            result.node.extend(added)
            copy.input[0] = name
        result.node.append(copy)
    return result


def allowed_rounding(node: onnx.NodeProto) -> Rounding | None:
    """Return what a product may round its left operand to; None for nothing, or another node."""
    if (node.domain, node.op_type) != (MICROSOFT, "MatMulNBits"):
        return None
    return _ROUNDINGS.get(_integer(node, "accuracy_level"))


def rounding_steps(node: onnx.NodeProto, x: np.ndarray) -> np.ndarray:
    """Return how far such a rounding may move each element of the left operand, at most."""
    if allowed_rounding(node) == "bfloat16":
        return np.asarray(np.abs(x) * TOLERANCES["bfloat16"].epsilon)
    blocks = x.reshape(-1, _integer(node, "block_size"))
    most = np.abs(blocks).max(axis=-1, keepdims=True) / (2 * _LARGEST)
    return np.asarray(np.broadcast_to(most, blocks.shape).reshape(x.shape))


def _integer(node: onnx.NodeProto, name: str) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), 0)


def _to_bfloat16(node: onnx.NodeProto, result: str) -> Iterator[onnx.NodeProto]:
    narrow = f"{result}/narrow"
    yield helper.make_node("Cast", [node.input[0]], [narrow], to=TensorProto.BFLOAT16)
    yield helper.make_node("Cast", [narrow], [result], to=TensorProto.FLOAT)


def _to_int8(
    node: onnx.NodeProto, result: str, *, has_axes_input: bool
) -> Iterator[onnx.NodeProto]:
    """Yield nodes that round blocks to whole multiples of a 127th of their largest number."""

    def name(of: str) -> str:
        return f"{result}/{of}"

    def constant(of: str, value: np.ndarray) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name(of)], value=numpy_helper.from_array(value))

    block = _integer(node, "block_size")
    yield constant("sizes", np.array([-1, block], np.int64))
    yield constant("most", np.array(_LARGEST, np.float32))
    yield constant("least", np.array(_LEAST, np.float32))
    axes = [name("axis")] if has_axes_input else []
    if has_axes_input:
        yield constant("axis", np.array([1], np.int64))
    for op_type, operands, output in (
        ("Shape", [node.input[0]], name("shape")),
        ("Reshape", [node.input[0], name("sizes")], name("blocks")),
        ("Abs", [name("blocks")], name("absolute")),
        ("ReduceMax", [name("absolute"), *axes], name("largest")),
        ("Max", [name("largest"), name("least")], name("divisor")),
        ("Div", [name("divisor"), name("most")], name("scale")),
        ("Div", [name("blocks"), name("scale")], name("parts")),
        ("Round", [name("parts")], name("whole")),
        ("Mul", [name("whole"), name("scale")], name("moved")),
        ("Reshape", [name("moved"), name("shape")], result),
    ):
        made = helper.make_node(op_type, operands, [output])
        if op_type == "ReduceMax" and not has_axes_input:
            made.attribute.append(helper.make_attribute("axes", [1]))
        yield made
