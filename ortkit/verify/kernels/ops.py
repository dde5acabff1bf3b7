"""Operators that onnx.reference lacks, computes with less than float64, or takes long for."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from ortkit.verify.kernels.ops_activations import (
    Erf,
    Gelu,
    HardSwish,
    Mish,
    Sigmoid,
    Softplus,
    Softsign,
    Swish,
)
from ortkit.verify.kernels.ops_attention import GroupQueryAttention
from ortkit.verify.kernels.ops_blocks import (
    DequantizeLinear,
    MatMulNBits,
    QLinearAdd,
    QLinearGlobalAveragePool,
    QLinearMul,
)
from ortkit.verify.kernels.ops_resize import Resize
from ortkit.verify.kernels.ops_rows import (
    ArgMax,
    ArgMin,
    GroupNormalization,
    LayerNormalization,
    LogSoftmax,
    ReduceLogSumExp,
    RMSNormalization,
)
from ortkit.verify.kernels.ops_selection import NonMaxSuppression
from ortkit.verify.kernels.ops_windows import Conv, ConvInteger, MaxPool


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


class CastLike(OpRun):
    """A conversion to the type of another tensor; floats are float64 in both."""

    op_domain = ""

    def _run(self, x: np.ndarray, like: np.ndarray, **_: object) -> tuple[np.ndarray]:
        return (x.astype(like.dtype),)


class MatMul(OpRun):
    """ONNX MatMul-13; many small matrices with one other are one large one, which is faster."""

    op_domain = ""

    def _run(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray]:
        if a.ndim > 2 and b.ndim == 2:
            made = a.reshape(-1, a.shape[-1]) @ b
            return (made.reshape(*a.shape[:-1], b.shape[1]),)
        return (np.matmul(a, b),)


class MatMulInteger(MatMul):
    """ONNX MatMulInteger-10: sums that float64 has exactly, up to K = 2^37; int32 wraps around.

    As products of int32, which numpy computes one by one, they take a hundred times as long.
    """

    op_domain = ""

    def _run(
        self,
        a: np.ndarray,
        b: np.ndarray,
        a_zero: np.ndarray | None = None,
        b_zero: np.ndarray | None = None,
    ) -> tuple[np.ndarray]:
        operands = [operand.astype(np.float64) for operand in (a, b)]
        if a_zero is not None:
            # Several of one axis belong to rows.
            operands[0] -= a_zero[:, None] if a_zero.ndim == 1 and a_zero.size > 1 else a_zero
        if b_zero is not None:
            operands[1] -= b_zero
        (sums,) = super()._run(*operands)
        return (sums.astype(np.int64).astype(np.int32),)


OPS: tuple[type[OpRun], ...] = (
    ArgMax, ArgMin, CastLike, Conv, ConvInteger, DequantizeLinear, Erf, Gelu, GroupNormalization,
    GroupQueryAttention, HardSwish, LayerNormalization, LogSoftmax, MatMul, MatMulInteger,
    MatMulNBits, MaxPool, Mean, Mish, NonMaxSuppression, QLinearAdd, QLinearGlobalAveragePool,
    QLinearMul, RMSNormalization, ReduceLogSumExp, Resize, Sigmoid, Softplus, Softsign, Sum, Swish,
)  # fmt: skip
