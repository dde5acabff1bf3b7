"""Rewriting nodes in place, with the constants and helper nodes that this takes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import OVERRIDABLE_SINCE_IR
from ortkit.graph.opsets.form import Form, New, Operand
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import control_nodes_below, names_in, roots, take_name


class Writer:
    """Rewrites the nodes of one model; equal constants are shared."""

    def __init__(self, model: ir.Model, shapes: Shapes | None, names: set[str] | None) -> None:
        self._model = model
        self._shapes = shapes
        self._names = names
        self._shared: dict[tuple[int, ir.DataType, tuple[int, ...], bytes], ir.Value] = {}
        self._seeing: set[int] | None = None
        self._made: list[ir.Node] = []

    def write(self, root: ir.Graph | ir.Function, form: Form) -> list[ir.Node]:
        """Let the node of `form` be written like that; return it and the nodes that were added."""
        node = form.node
        self._made = []
        inputs = [self._value(root, node, operand) for operand in form.inputs]
        node.op_type = form.op_type
        node.resize_inputs(len(inputs))
        for index, value in enumerate(inputs):
            if node.inputs[index] is not value:
                node.replace_input_with(index, value)
        for name in [name for name in node.attributes if name not in form.attributes]:
            node.attributes.pop(name)
        for name, attribute in form.attributes.items():
            if node.attributes.get(name) is not attribute:
                node.attributes[name] = attribute
        node.resize_outputs(form.outputs)
        return [*self._made, node]

    def _value(
        self, root: ir.Graph | ir.Function, node: ir.Node, operand: Operand
    ) -> ir.Value | None:
        if operand is None or isinstance(operand, ir.Value):
            return operand
        if isinstance(operand, New):
            return self._constant(root, node, operand)
        inputs = [self._value(root, node, item) for item in operand.inputs]
        made = ir.node(operand.op_type, inputs, dict(operand.attributes))
        self._insert(node, made, f"{node.outputs[0].name}/{operand.op_type}", node)
        return made.outputs[0]

    def _constant(self, root: ir.Graph | ir.Function, node: ir.Node, new: New) -> ir.Value:
        """Return an initializer, or a Constant node where there can be none."""
        graph = node.graph
        assert graph is not None, "the node is in no graph"
        holder = root if self._sees(node) else graph
        array = np.asarray(new.array, order="C")
        tensor = ir.tensor(array)
        key = (id(holder), tensor.dtype, tuple(array.shape), array.tobytes())
        if key in self._shared:
            return self._shared[key]
        name = f"{node.outputs[0].name}/{new.name}"
        if holder is self._model.graph:
            value = self._initializer(tensor, name)
        else:
            made = ir.node("Constant", [], {"value": tensor})
            first = next(iter(holder))
            self._insert(first, made, name, node)
            value = made.outputs[0]
        self._shared[key] = value
        return value

    def _initializer(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        fresh = tensor.name = self._fresh(name)
        value = ir.Value(
            name=fresh,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self._model.graph.register_initializer(value)
        if self._model.ir_version < OVERRIDABLE_SINCE_IR:
            self._model.graph.inputs.append(value)
        return value

    def _insert(self, before: ir.Node, made: ir.Node, name: str, asker: ir.Node) -> None:
        holder = before.graph
        assert holder is not None, f"{asker.name!r} is in no graph"
        made.outputs[0].name = self._fresh(name)
        made.name = self._fresh(f"{name}/node")
        holder.insert_before(before, made)
        if self._shapes is not None:
            self._shapes.infer_node(made)
            dtype = self._shapes.dtype(made.outputs[0])
            made.outputs[0].type = None if dtype is None else ir.TensorType(dtype)
        self._made.append(made)

    def _sees(self, node: ir.Node) -> bool:
        """Say whether `node` is where values of its root graph are known to be visible."""
        if self._seeing is None:
            self._seeing = {
                id(item) for root in roots(self._model) for item in control_nodes_below(root)
            }
        return id(node) in self._seeing

    def _fresh(self, name: str) -> str:
        if self._names is None:
            self._names = names_in(self._model)
        return take_name(self._names, name)
