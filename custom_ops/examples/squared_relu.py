"""Squared ReLU, the activation of Primer (So et al., 2021)."""

# mypy: ignore-errors
# ruff: noqa: F722

import numpy as np
import onnxscript
from onnxscript import opset20 as op

import ortkit


@ortkit.custom_op("ortkit.examples::SquaredReLU")
def squared_relu(x: ortkit.Float["*shape"]) -> ortkit.Float["*shape"]:
    """Return max(x, 0) squared."""
    return np.square(np.maximum(x, 0))


@squared_relu.body
@onnxscript.script(default_opset=op)
def body(x):
    r = op.Relu(x)
    return op.Mul(r, r)


squared_relu.kernel(
    "triton", "ortkit.custom_ops.examples.gpu.squared_relu:squared_relu",
    dtypes=("float32", "float16", "bfloat16"), grid="ceil(shape / BLOCK)",
    constants={"BLOCK": 1024},
)  # fmt: skip
