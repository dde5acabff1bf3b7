"""A product of 8-bit integers, scaled to floats by column: what quantized layers compute."""

# mypy: ignore-errors
# ruff: noqa: F722, F821

import numpy as np
import onnxscript
from onnxscript import opset20 as op

import ortkit


@ortkit.custom_op("ortkit.examples::QuantizedProduct")
def quantized_product(
    x: ortkit.UInt8["m k"],
    zero: ortkit.UInt8[""],
    w: ortkit.Int8["k n"],
    scale: ortkit.Float32["n"],
) -> ortkit.Float32["m n"]:
    """Return (x - zero) w, summed in 32 bits, times the scale of each column."""
    total = (x.astype(np.int32) - np.int32(zero)) @ w.astype(np.int32)
    return total.astype(np.float32) * scale


@quantized_product.body
@onnxscript.script(default_opset=op)
def body(x, zero, w, scale):
    return op.Mul(op.Cast(op.MatMulInteger(x, w, zero), to=1), scale)


# Without one of its own for CPUs: there ONNX Runtime computes the body in one kernel.
for _rows, _columns, _depth, _warps, _when in (
    (64, 64, 64, 4, "n % 16 == 0 and k % 16 == 0 and m*n <= 600000"),
    (128, 128, 128, 8, "n % 16 == 0 and k % 16 == 0"),
    (64, 64, 64, 4, ""),
):
    quantized_product.kernel(
        "triton", "ortkit.custom_ops.examples.gpu.quantized_product:quantized_product",
        grid=("ceil(m / ROWS)", "ceil(n / COLUMNS)"), warps=_warps, when=_when,
        constants={"ROWS": _rows, "COLUMNS": _columns, "DEPTH": _depth},
    )  # fmt: skip
