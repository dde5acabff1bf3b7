"""Adding nodes and constants to a model's main graph, under names that nothing has yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import OVERRIDABLE_SINCE_IR
from ortkit.graph.walk import names_in, take_name

MICROSOFT = "com.microsoft"


class Builder:
    """Makes nodes, and keeps those that it made until they are taken.

    Nodes stand in no graph before the caller puts them there, so that a form of computing
    something can be written into the main graph or into the body of an If.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._names = names_in(model)
        self._made: list[ir.Node] = []

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        dtypes: Sequence[ir.DataType | None] = (ir.DataType.FLOAT,),
    ) -> tuple[ir.Value, ...]:
        """Make a node with one output for each of `dtypes`, None where it is not known."""
        made = ir.node(
            op_type, list(inputs), dict(attributes or {}), domain=domain, num_outputs=len(dtypes)
        )
        made.name = self.fresh(f"{name}/{op_type}")
        for value, dtype in zip(made.outputs, dtypes, strict=True):
            value.name = self.fresh(name)
            value.type = None if dtype is None else ir.TensorType(dtype)
        if domain and domain not in self.model.opset_imports:
            self.model.opset_imports[domain] = 1
        self._made.append(made)
        return tuple(made.outputs)

    def one(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        dtype: ir.DataType | None = ir.DataType.FLOAT,
    ) -> ir.Value:
        """Make a node with one output, and return that."""
        return self.node(op_type, inputs, name, attributes, domain=domain, dtypes=(dtype,))[0]

    def constant(self, array: np.ndarray, name: str) -> ir.Value:
        """Add an initializer to the main graph."""
        fresh = self.fresh(name)
        tensor = ir.tensor(np.asarray(array, order="C"), name=fresh)
        graph = self.model.graph
        value = ir.Value(
            name=fresh,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        graph.register_initializer(value)
        if self.model.ir_version < OVERRIDABLE_SINCE_IR:
            graph.inputs.append(value)
        return value

    def sizes(self, numbers: Sequence[int], name: str) -> ir.Value:
        """Add an initializer of sizes or places: int64."""
        return self.constant(np.array(numbers, np.int64), name)

    def again(self, node: ir.Node, inputs: Sequence[ir.Value | None], name: str) -> ir.Value:
        """Make a node with one output of float32 once more, on other inputs."""
        attributes = {attribute.name: attribute for attribute in node.attributes.values()}
        return self.one(node.op_type, inputs, name, attributes, domain=node.domain)

    def take(self) -> list[ir.Node]:
        """Return the nodes made since this was last called, in order."""
        made, self._made = self._made, []
        return made

    def insert_after(self, graph: ir.Graph, value: ir.Value) -> None:
        """Put the nodes made since the last `take` right behind what makes a value."""
        producer = value.producer()
        if producer is None:
            graph.insert_before(graph[0], self.take())
        else:
            graph.insert_after(producer, self.take())

    def fresh(self, name: str) -> str:
        """Return a name made from `name` that nothing has; now it is taken."""
        return take_name(self._names, name)


def stand_in(old: ir.Value, new: ir.Value) -> None:
    """Let `new` be read, and returned, wherever `old` is; `new` gets its name, shape and type."""
    new.name, old.name = old.name, new.name
    new.shape, new.type = old.shape, old.type
    if old.is_graph_output():
        new.doc_string = old.doc_string
        new.metadata_props.update(old.metadata_props)
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def drop_unread(graph: ir.Graph, node: ir.Node) -> None:
    """Remove `node`, and what only it read; it has no body, and nothing reads it."""
    pending = [node]
    while pending:
        current = pending.pop()
        is_read = any(value.uses() or value.is_graph_output() for value in current.outputs)
        if current.graph is not graph or is_read:
            continue
        sources = [value.producer() for value in current.inputs if value is not None]
        graph.remove(current, safe=True)
        pending += [source for source in sources if source is not None]
