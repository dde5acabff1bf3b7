"""Vector addition: two inputs of one shape, any number of axes."""

# mypy: ignore-errors
# ruff: noqa: F722

import onnxscript
from onnxscript import opset20 as op

import ortkit


@ortkit.custom_op("ortkit.examples::VectorAdd", outputs=("z",))
def vector_add(x: ortkit.Float["*shape"], y: ortkit.Float["*shape"]) -> ortkit.Float["*shape"]:
    """Return x + y, element by element, without broadcasting."""
    return x + y


@vector_add.body
@onnxscript.script(default_opset=op)
def body(x, y):
    return op.Add(x, y)


vector_add.kernel(
    "triton", "ortkit.custom_ops.examples.gpu.vector_add:vector_add",
    dtypes=("float32", "float16", "bfloat16"), grid="ceil(shape / BLOCK)",
    constants={"BLOCK": 1024},
)  # fmt: skip
