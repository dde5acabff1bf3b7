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
