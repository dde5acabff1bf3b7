"""A matrix product: its body is ONNX Runtime's own MatMul, as fast as the machine."""

# mypy: ignore-errors
# ruff: noqa: F722

import onnxscript
from onnxscript import opset20 as op

import ortkit


@ortkit.custom_op("ortkit.examples::MatrixProduct")
def matrix_product(x: ortkit.Float["m k"], w: ortkit.Float["k n"]) -> ortkit.Float["m n"]:
    """Return x w."""
    return x @ w


@matrix_product.body
@onnxscript.script(default_opset=op)
def body(x, w):
    return op.MatMul(x, w)


# On tensor cores where the type is one of theirs; the second tile is for small products.
for _rows, _columns, _depth, _warps, _types, _when in (
    (128, 128, 64, 8, ("float16", "bfloat16"), "m % 128 == 0 and n % 128 == 0 and k % 64 == 0"),
    (64, 64, 32, 4, ("float32", "float16", "bfloat16"), ""),
):
    matrix_product.kernel(
        "triton", "ortkit.custom_ops.examples.gpu.matrix_product:matrix_product",
        dtypes=_types, when=_when, warps=_warps, stages=4,
        grid=("ceil(m / ROWS)", "ceil(n / COLUMNS)"),
        constants={"ROWS": _rows, "COLUMNS": _columns, "DEPTH": _depth, "GROUP": 8},
    )  # fmt: skip
