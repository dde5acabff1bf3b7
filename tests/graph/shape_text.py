"""Models as text for the tests of shape inference."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Size


def parse(body: str, inputs: str = "", constants: str = "", opset: int = 21) -> ir.Model:
    """Make a model with output `y` from its nodes; nothing is declared of `y`."""
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1, "custom" : 1]>\n'
        f"g ({inputs}) => (float y) <{constants}> {{ {body} }}"
    )
    for value in model.graph.outputs:
        value.type = None
        value.shape = None
    return model


def values(model: ir.Model) -> dict[str, ir.Value]:
    """Return every value by name, those of subgraphs too."""
    found = {value.name or "": value for value in model.graph.inputs}
    found.update(model.graph.initializers)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        found.update({value.name or "": value for value in node.outputs})
    return found


def text(shape: tuple[Size, ...] | None) -> str:
    """Write a shape as `a, 2*b, ?`; an unknown rank is `none`."""
    if shape is None:
        return "none"
    return ", ".join(_size(size) for size in shape)


def _size(size: Size) -> str:
    found = str(size)
    return "?" if found[0] in "?!" and found[1:].isdigit() else found


def shape_of(
    body: str, inputs: str = "", constants: str = "", opset: int = 21, output: str = "y"
) -> str:
    """Infer the model and return the shape of one value as text."""
    model = parse(body, inputs, constants, opset)
    return text(Shapes.infer(model).shape(values(model)[output]))


def contents_of(
    body: str, inputs: str = "", constants: str = "", opset: int = 21, output: str = "y"
) -> str:
    """Infer the model and return the contents of one value as text."""
    model = parse(body, inputs, constants, opset)
    return text(Shapes.infer(model).contents(values(model)[output]))
