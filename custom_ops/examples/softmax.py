"""Softmax of rows, after a bias that may be left out: one kernel for each case."""

# mypy: ignore-errors
# ruff: noqa: F722, F821

import numpy as np
import onnxscript
from onnxscript import opset20 as op

import ortkit


@ortkit.custom_op("ortkit.examples::BiasSoftmax")
def bias_softmax(
    x: ortkit.Float["*batch n"], bias: ortkit.Float["n"] | None = None
) -> ortkit.Float["*batch n"]:
    """Return exp(x + bias) of each row over its sum."""
    t = x if bias is None else x + bias
    largest = np.max(t, axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(t - largest)
    return e / e.sum(axis=-1, keepdims=True)


@bias_softmax.body
@onnxscript.script(default_opset=op)
def body(x, bias):
    return op.Softmax(op.Add(x, bias), axis=-1)


@bias_softmax.body(without=["bias"])
@onnxscript.script(default_opset=op)
def body_without_bias(x):
    return op.Softmax(x, axis=-1)


# Rows of up to 16384 elements lie in the registers of a block; longer ones are left to the body.
for _block, _warps in ((1024, 4), (4096, 8), (16384, 16)):
    for _without in ((), ("bias",)):
        bias_softmax.kernel(
            "triton", "ortkit.custom_ops.examples.gpu.softmax:bias_softmax",
            dtypes=("float32", "float16", "bfloat16"), without=_without, grid="batch",
            when=f"n <= {_block}", constants={"BLOCK": _block}, warps=_warps,
        )  # fmt: skip
