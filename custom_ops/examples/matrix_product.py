"""A matrix product: tiles of it on tensor cores on GPUs."""

# mypy: ignore-errors
# ruff: noqa: F722

import numpy as np
import onnxscript
from onnxscript import opset20 as op

import ortkit


@ortkit.custom_op("ortkit.examples::MatrixProduct")
def matrix_product(x: ortkit.Float["m k"], w: ortkit.Float["k n"]) -> ortkit.Float["m n"]:
    """Return x w, summed in float32 at least."""
    wide = np.promote_types(x.dtype, np.float32)
    return (x.astype(wide) @ w.astype(wide)).astype(x.dtype)


@matrix_product.body
@onnxscript.script(default_opset=op)
def body(x, w):
    return op.MatMul(x, w)


# Without one of its own for CPUs: there ONNX Runtime's kernel for the body is faster.
# Tiles for tensor cores, measured on an H100: small ones where large ones would not fill it, and
# sizes that are multiples of 16, which are loaded in vectors. The last one takes everything.
_WIDE = "n % 16 == 0 and k % 16 == 0"
for _rows, _columns, _depth, _warps, _stages, _types, _when in (
    (64, 64, 64, 4, 5, ("float16", "bfloat16"), f"{_WIDE} and m*n <= 600000"),
    (128, 256, 64, 8, 3, ("float16", "bfloat16"), _WIDE),
    (64, 64, 32, 4, 3, ("float32", "float16", "bfloat16"), ""),
):
    matrix_product.kernel(
        "triton", "ortkit.custom_ops.examples.gpu.matrix_product:matrix_product",
        dtypes=_types, when=_when, warps=_warps, stages=_stages,
        grid=("ceil(m / ROWS)", "ceil(n / COLUMNS)"),
        constants={"ROWS": _rows, "COLUMNS": _columns, "DEPTH": _depth, "GROUP": 8},
    )  # fmt: skip
