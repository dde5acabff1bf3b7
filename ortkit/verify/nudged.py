"""How far a quantized model's results move when its numbers fall to neighbouring steps.

ONNX Runtime's integer kernels give numbers that are a step apart from what the standard says
(QLinearSoftmax, sums in fixed point), and which nodes it makes such kernels of depends on what
stands beside them; a float that is off by one epsilon in front of QuantizeLinear is a step apart
behind it. So the original is run once more with steps that are a little larger at one node and
smaller at the next: what that changes is what no rewrite is to be blamed for.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.graph.open import open_model
from ortkit.graph.save import save_model
from ortkit.graph.shapes import Shapes
from ortkit.graph.walk import control_nodes_below, names_in, take_name

#: Nodes that quantize what they are given, and which input is scaled.
_QUANTIZING = {"QuantizeLinear": 1, "DynamicQuantizeLinear": 0, "DynamicQuantizeMatMul": 0}
_DOMAINS = ("", "com.microsoft")
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})
#: Half a step of 8 bits at the end of their range.
_PART = 2.0**-9


def write_nudged(original: Path, folder: Path) -> Path | None:
    """Write a copy whose steps are off by a part; None for a model that quantizes nothing.

    Args:
        original: An ONNX file.
        folder: For the copy; made here.
    """
    model = open_model(original)
    found = [
        (node, value)
        for node in control_nodes_below(model.graph)
        if node.domain in _DOMAINS and (value := _scaled(node)) is not None
    ]
    if not found:
        return None
    shapes, names = Shapes.infer(model), names_in(model)
    for number, (node, value) in enumerate(found):
        dtype = shapes.dtype(value)
        if dtype not in _FLOATS or node.graph is None:
            continue
        factor = np.array(1 + _PART * (-1) ** number, dtype.numpy())
        constant = ir.node("Constant", [], {"value": ir.tensor(factor)})
        product = ir.node("Mul", [value, constant.outputs[0]])
        for made in (constant, product):
            made.outputs[0].name = take_name(names, f"{value.name}/nudged")
        node.graph.insert_before(node, [constant, product])
        node.replace_input_with(_QUANTIZING[node.op_type], product.outputs[0])
    folder.mkdir(parents=True, exist_ok=True)
    return save_model(model, folder / "nudged.onnx").model


def _scaled(node: ir.Node) -> ir.Value | None:
    index = _QUANTIZING.get(node.op_type)
    return None if index is None or index >= len(node.inputs) else node.inputs[index]
