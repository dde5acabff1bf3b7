"""A provider that forwards nodes to another library: numpy, or torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

import ortkit
from ortkit.errors import UserError
from ortkit.provider import GraphView

#: Name of the library -> the module with its table of operators.
LIBRARIES = {
    "numpy": "examples.forward_provider.numpy_ops",
    "torch": "examples.forward_provider.torch_ops",
}
FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
#: Inputs that are not what is computed on, but say how: position by operator.
SETTINGS = {"Reshape": 1}
#: First version of an operator that the tables compute; 6 for those that are not here.
SINCE = {"Add": 7, "Concat": 4, "Conv": 1, "Div": 7, "Gemm": 7, "MatMul": 1, "Mul": 7, "Pow": 7,
         "Reshape": 5, "Softmax": 13, "Sub": 7, "Transpose": 1}  # fmt: skip
Tensor = Any


class ForwardProvider(ortkit.ExecutionProvider):
    """Runs stretches of nodes in the library that the session's option `library` names."""

    name: ClassVar[str] = "ForwardExecutionProvider"

    def start(self) -> None:
        library = self.session.options.get("library", "numpy")
        if library not in LIBRARIES:
            raise UserError(
                f"no library is called {library!r}",
                where="option library",
                fix=f"use {', '.join(LIBRARIES)}",
            )
        module = import_module(LIBRARIES[library])
        self.ops: Mapping[str, Callable[..., Tensor]] = module.OPS
        self.take_in: Callable[[Any], Tensor] = module.take_in

    def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
        return graph.groups(self.takes)

    def takes(self, node: ir.Node) -> bool:
        """Say whether the library has the node's operator, for its types."""
        if node.domain or node.op_type not in self.ops:
            return False
        if (node.version or 0) < SINCE.get(node.op_type, 6):
            return False
        padding = node.attributes.get("auto_pad")
        if padding is not None and padding.as_string() != "NOTSET":
            return False
        position = SETTINGS.get(node.op_type)
        computed = [value for index, value in enumerate(node.inputs) if index != position]
        values = [value for value in (*computed, *node.outputs) if value is not None]
        return len(node.outputs) == 1 and all(value.dtype in FLOATS for value in values)

    def compile(self, subgraph: GraphView) -> Callable[..., Any]:
        take_in = self.take_in
        names = [value.name for value in subgraph.inputs]
        outputs = [value.name for value in subgraph.outputs]
        steps = [
            (
                self.ops[node.op_type],
                [None if value is None else value.name for value in node.inputs],
                {name: _plain(attribute) for name, attribute in node.attributes.items()},
                node.outputs[0].name,
            )
            for node in subgraph
        ]

        def kernel(*arrays: Any) -> tuple[Tensor, ...]:
            values: dict[str | None, Tensor] = {None: None}
            values.update(zip(names, map(take_in, arrays), strict=True))
            for function, read, attributes, made in steps:
                values[made] = function(*(values[name] for name in read), **attributes)
            return tuple(values[name] for name in outputs)

        return kernel


def _plain(attribute: ir.Attr) -> Any:
    value = attribute.value
    return value.numpy() if attribute.type == ir.AttributeType.TENSOR else value


def sizes(shape: Any, asked: Any) -> list[int]:
    """Return the sizes that Reshape asks for: 0 stands for the input's own.

    Args:
        shape: Of the input.
        asked: The second input.
    """
    return [
        int(shape[index]) if size == 0 else int(size)
        for index, size in enumerate(np.asarray(asked).tolist())
    ]
