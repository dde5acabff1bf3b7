"""The arithmetic of fused nodes, counted in the bodies of their functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ortkit.graph.analysis.cost import model_cost
from ortkit.graph.inline import inline_functions

TypedShape = tuple[ir.DataType, tuple[int, ...]]


class BodyFlops:
    """Counts what calls of a model's functions compute, once for each function and its sizes."""

    def __init__(self, functions: Mapping[ir.OperatorIdentifier, ir.Function]) -> None:
        """Take the functions of a model.

        Args:
            functions: By domain, name and overload; read, not changed.
        """
        self._functions = functions
        self._counted: dict[tuple[object, ...], int | None] = {}

    def of(self, node: ir.Node, inputs: Sequence[TypedShape | None]) -> int | None:
        """Return the operations of one call; None: it calls no function, or one is not known.

        Args:
            node: The call.
            inputs: Type and shape of each of its inputs; None for one that is absent.
        """
        function = self._functions.get(node.op_identifier())
        if function is None:
            return None
        attributes = tuple((name, str(value)) for name, value in node.attributes.items())
        key = (node.op_identifier(), tuple(inputs), attributes)
        if key not in self._counted:
            self._counted[key] = _counted(node, function, inputs)
        return self._counted[key]


def _counted(
    node: ir.Node, function: ir.Function, inputs: Sequence[TypedShape | None]
) -> int | None:
    values = [
        None if item is None else _value(f"input{at}", *item) for at, item in enumerate(inputs)
    ]
    call = ir.Node(
        node.domain, node.op_type, values, node.attributes.values(),
        overload=node.overload, num_outputs=len(node.outputs), name="call",
    )  # fmt: skip
    for at, output in enumerate(call.outputs):
        output.name = f"output{at}"
    imports = {node.domain: 1, **function.opset_imports}
    given = [value for value in values if value is not None]
    graph = ir.Graph(given, call.outputs, nodes=[call], opset_imports=imports, name="body")
    model = ir.Model(graph, ir_version=10, functions=[function])
    inline_functions(model)
    cost = model_cost(model, {})
    return None if cost.uncounted else cost.flops


def _value(name: str, dtype: ir.DataType, shape: tuple[int, ...]) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
