"""Products with weights of a few bits, for `kernels/ops.py`; and what they may round."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference.op_run import OpRun

MICROSOFT = "com.microsoft"
#: Accuracy levels of MatMulNBits that let its left operand be rounded to bfloat16, or to int8.
_ROUNDED_LEVELS = (3, 4)


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
    """Return a body whose MatMulNBits round their left operand to bfloat16, if they may.

    That is the less of what their accuracy level allows. ONNX Runtime rounds to int8 where the
    weight is a constant, and not at all where it is none, as in a model of one kernel.
    """
    result = onnx.FunctionProto()
    result.CopyFrom(function)
    del result.node[:]
    for node in function.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if may_round(node):
            name = node.output[0]
            narrow, wide = f"{name}/narrow", f"{name}/wide"
            result.node.append(
                helper.make_node("Cast", [node.input[0]], [narrow], to=TensorProto.BFLOAT16)
            )
            result.node.append(helper.make_node("Cast", [narrow], [wide], to=TensorProto.FLOAT))
            copy.input[0] = wide
        result.node.append(copy)
    return result


def may_round(node: onnx.NodeProto) -> bool:
    """Say whether a node is a product whose left operand may be rounded to bfloat16."""
    level = next((one.i for one in node.attribute if one.name == "accuracy_level"), 0)
    is_blocked = (node.domain, node.op_type) == (MICROSOFT, "MatMulNBits")
    return is_blocked and level in _ROUNDED_LEVELS
