"""Layer normalization with a residual: two outputs, and an attribute that is set at run time."""

# mypy: ignore-errors
# ruff: noqa: F722, F821

import numpy as np
import onnxscript
from onnxscript import opset20 as op

import ortkit


@ortkit.custom_op("ortkit.examples::ResidualLayerNorm", outputs=("y", "total"))
def residual_layer_norm(
    x: ortkit.Float["*batch n"],
    residual: ortkit.Float["*batch n"],
    scale: ortkit.Float["n"],
    bias: ortkit.Float["n"],
    *,
    epsilon: float = 1e-5,
) -> tuple[ortkit.Float["*batch n"], ortkit.Float["*batch n"]]:
    """Return the normalized rows of x + residual, scaled and shifted, and the sum itself."""
    total = x + residual
    wide = total.astype(np.promote_types(total.dtype, np.float32))
    count = max(wide.shape[-1], 1)
    centered = wide - wide.sum(axis=-1, keepdims=True) / count
    variance = np.square(centered).sum(axis=-1, keepdims=True) / count
    y = centered / np.sqrt(variance + np.asarray(epsilon, wide.dtype)) * scale + bias
    return y.astype(x.dtype), total


@residual_layer_norm.body
@onnxscript.script(default_opset=op)
def body(x, residual, scale, bias, epsilon: float = 1e-5):
    total = op.Add(x, residual)
    centered = op.Sub(total, op.ReduceMean(total, op.Constant(value_ints=[-1])))
    variance = op.ReduceMean(op.Mul(centered, centered), op.Constant(value_ints=[-1]))
    limit = op.CastLike(op.Constant(value_float=epsilon), x)
    norm = op.Div(centered, op.Sqrt(op.Add(variance, limit)))
    y = op.Add(op.Mul(norm, scale), bias)
    return y, total


for _block, _warps in ((1024, 4), (4096, 8), (16384, 16)):
    residual_layer_norm.kernel(
        "triton", "ortkit.custom_ops.examples.gpu.layer_norm:residual_layer_norm",
        dtypes=("float32", "float16", "bfloat16"), grid="batch", when=f"n <= {_block}",
        constants={"BLOCK": _block}, warps=_warps,
    )  # fmt: skip
