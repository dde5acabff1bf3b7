"""A model in float32 that rounds where another computes in half precision.

ONNX Runtime's CPU provider has few kernels for float16 and none for bfloat16. It casts around each
node and then takes the casts between two of them away, so that nothing is rounded there. A pair of
casts that stands in the model it keeps (onnxruntime 1.31.1).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array
from ortkit.graph.inline import inline_functions
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import names_in, take_name

_FLOAT = ir.DataType.FLOAT


def rounding_model(model: ir.Model, half: ir.DataType) -> ir.Model:
    """Return a copy that computes in float32 and rounds every value of type `half`.

    Functions are inlined: kernels that stand for them round less often.

    Args:
        model: Its inputs, outputs and the bodies in it hold no values of type `half`.
        half: FLOAT16 or BFLOAT16.
    """
    copy = model.clone()
    if copy.functions:
        inline_functions(copy)
    graph, names = copy.graph, names_in(copy)
    shapes = Shapes.infer(copy)
    for value in [v for v in graph.initializers.values() if v.dtype == half]:
        array = constant_array(value)
        assert array is not None
        value.const_value = ir.tensor(array.astype(np.float32), name=value.name)
        value.type = ir.TensorType(_FLOAT)
    for node in list(graph):
        for value in node.outputs:
            if shapes.dtype(value) == half:
                value.type = ir.TensorType(_FLOAT)
                value.const_value = None
                _round(graph, node, value, half, names)
        if _casts_to(node, half):
            node.attributes["to"] = ir.AttrInt64("to", int(_FLOAT))
        tensor = node.attributes.get("value")
        if node.op_type == "Constant" and tensor is not None and tensor.as_tensor().dtype == half:
            array = tensor.as_tensor().numpy().astype(np.float32)
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(array))
    return copy


def _round(
    graph: ir.Graph, node: ir.Node, value: ir.Value, half: ir.DataType, names: set[str]
) -> None:
    """Let all that reads `value` read it rounded."""
    down = ir.node("Cast", [value], {"to": int(half)})
    up = ir.node("Cast", [down.outputs[0]], {"to": int(_FLOAT)})
    readers = list(value.uses())
    for each, end in ((down, "rounded"), (up, "widened")):
        each.outputs[0].name = take_name(names, f"{value.name}/{end}")
        each.name = take_name(names, f"{each.outputs[0].name}/Cast")
        each.outputs[0].shape = value.shape
    graph.insert_after(node, [down, up])
    down.outputs[0].type = ir.TensorType(half)
    up.outputs[0].type = ir.TensorType(_FLOAT)
    for use in readers:
        if use.node is not down:
            use.node.replace_input_with(use.idx, up.outputs[0])


def _casts_to(node: ir.Node, half: ir.DataType) -> bool:
    to = node.attributes.get("to")
    is_cast = node.op_type == "Cast" and node.domain == ""
    return is_cast and to is not None and not to.is_ref() and to.as_int() == int(half)
