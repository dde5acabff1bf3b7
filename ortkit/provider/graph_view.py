"""A graph of ONNX Runtime's, as it shows it to a provider, read into onnx-ir."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from ortkit.graph.walk import nodes_below
from ortkit.provider.attributes import AttributeReader, subgraphs
from ortkit.provider.metadata import ModelMetadata, read_metadata
from ortkit.provider.partition import partition
from ortkit.provider.slots import Slots
from ortkit.provider.tensors import Lease, RuntimeTensor, TypeReader


@dataclass(frozen=True, eq=False, repr=False)
class GraphView:
    """What ONNX Runtime shows a provider: an onnx-ir graph, and which of its nodes are which.

    The graph is a reading: edits do not reach ONNX Runtime. Nodes, shapes and attributes may be
    kept; the numbers of initializers may be read only until the callback returns that the view
    was made for (see `RuntimeTensor`).
    """

    graph: ir.Graph
    """Nodes in topological order, each with the version of its operator."""
    outer_values: tuple[ir.Value, ...]
    """Values of enclosing graphs that this graph, or one in it, reads; constants among them
    have a `const_value`. Empty for a model's main graph."""
    parent_op: str | None
    """The operator that holds the graph, such as "If"; None for a main or a fused graph."""
    name: str
    """Of the fused node, where the graph is that of one; else the graph's own."""
    ir_version: int
    model_path: str
    """Empty if the model came from memory."""
    handles: Mapping[ir.Node, int]
    """The graph's own nodes (not those of graphs in it) -> addresses of the OrtNodes."""
    lease: Lease
    _slots: Slots
    _address: int

    def __repr__(self) -> str:
        return f"GraphView({self.name!r}, {len(self)} nodes)"

    def __iter__(self) -> Iterator[ir.Node]:
        return iter(self.handles)

    def __len__(self) -> int:
        return len(self.handles)

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """The graph's inputs; of a fused graph, what its kernel is called with, in order."""
        return tuple(self.graph.inputs)

    @property
    def outputs(self) -> tuple[ir.Value, ...]:
        """The graph's outputs; of a fused graph, what its kernel returns, in order."""
        return tuple(self.graph.outputs)

    @property
    def initializers(self) -> Mapping[str, ir.Value]:
        """Name -> value with a `const_value`; those of the enclosing graphs not among them."""
        return self.graph.initializers

    @property
    def opset_imports(self) -> Mapping[str, int]:
        """Domain -> version of its operator set."""
        return self.graph.opset_imports

    @cached_property
    def metadata(self) -> ModelMetadata:
        """The model's metadata; to be asked for during the callback."""
        return read_metadata(self._slots, self._address)

    def assigned_to(self, node: ir.Node) -> str:
        """Return the provider that has the node already, empty if none; during the callback."""
        return self._slots.text(self._slots.Node_GetEpName, self.handles[node])

    def constant(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor that a value always is, or None if it is computed or fed."""
        return None if value is None else value.const_value

    def groups(self, takes: Callable[[ir.Node], bool]) -> list[list[ir.Node]]:
        """Return the nodes that `takes` says yes to, as few groups as hang together.

        No group waits for itself: what it makes does not come back through other nodes.
        """
        return partition(list(self.handles), takes)

    def to_model(self) -> ir.Model:
        """Return a model of its own: what is read from enclosing graphs is an input of it.

        Constants from there become initializers. Tensors are shared with the view.
        """
        graph = self.graph.clone(allow_outer_scope_values=True)
        replaced = {value: _twin(value) for value in self.outer_values}
        for node in nodes_below(graph) if replaced else ():
            for index, value in enumerate(node.inputs):
                if value in replaced:
                    node.replace_input_with(index, replaced[value])
        for value in replaced.values():
            if value.const_value is None:
                graph.inputs.append(value)
            else:
                graph.initializers.add(value)
        return ir.Model(graph, ir_version=self.ir_version)

    def close(self) -> list[str]:
        """End the reading of tensors; returns the names of those of which arrays are kept."""
        return self.lease.end()


def read_graph(slots: Slots, address: int) -> GraphView:
    """Read an OrtGraph that a provider is asked about.

    Raises:
        StatusError: ONNX Runtime refuses a question.
        ModelError: The graph holds what onnx-ir cannot.
    """
    lease = Lease()
    reader = _Reader(slots, lease)
    graph, handles = reader.graph(address, None)
    parent = slots.pointer(slots.Graph_GetParentNode, address)
    parent_op = slots.text(slots.Node_GetOperatorType, parent) if parent is not None else None
    return _view(reader, address, graph, handles, parent_op=parent_op, name=graph.name or "")


def read_fused_graph(slots: Slots, address: int, fused_node: int) -> GraphView:
    """Read an OrtGraph that is to be compiled.

    Its inputs and outputs are those of the node that stands for it, in that order: the OrtGraph
    itself also lists the constants that were dropped.

    Raises:
        StatusError, ModelError: As `read_graph`.
    """
    lease = Lease()
    reader = _Reader(slots, lease)
    graph, handles = reader.graph(address, None, fused_node)
    name = slots.text(slots.Node_GetName, fused_node)
    return _view(reader, address, graph, handles, parent_op=None, name=name)


def _view(
    reader: _Reader,
    address: int,
    graph: ir.Graph,
    handles: dict[ir.Node, int],
    *,
    parent_op: str | None,
    name: str,
) -> GraphView:
    slots = reader.slots
    return GraphView(
        graph=graph,
        outer_values=tuple(reader.outer.values()),
        parent_op=parent_op,
        name=name,
        ir_version=slots.count(slots.Graph_GetOnnxIRVersion, address),
        model_path=slots.text(slots.Graph_GetModelPath, address),
        handles=handles,
        lease=reader.lease,
        _slots=slots,
        _address=address,
    )


def _twin(value: ir.Value) -> ir.Value:
    return ir.Value(
        name=value.name, type=value.type, shape=value.shape, const_value=value.const_value
    )


class _Scope:
    """The values of one graph by name; those of the graphs around it are found through it."""

    def __init__(self, around: _Scope | None) -> None:
        self.around = around
        self.by_name: dict[str, ir.Value] = {}

    def find(self, name: str) -> ir.Value | None:
        scope: _Scope | None = self
        while scope is not None:
            found = scope.by_name.get(name)
            if found is not None:
                return found
            scope = scope.around
        return None


class _Reader:
    """Reads graphs, one in another; a value is made once, however often it is read."""

    def __init__(self, slots: Slots, lease: Lease) -> None:
        self.slots = slots
        self.lease = lease
        self.outer: dict[str, ir.Value] = {}
        self._types = TypeReader(slots)
        self._attributes = AttributeReader(slots)

    def graph(
        self, address: int, around: _Scope | None, fused_node: int | None = None
    ) -> tuple[ir.Graph, dict[ir.Node, int]]:
        """Read an OrtGraph; `fused_node` says what its inputs and outputs are, if given."""
        slots, scope = self.slots, _Scope(around)
        known: dict[int, ir.Value] = {}
        constants = [
            self._initializer(info, scope, known)
            for info in slots.many(
                slots.Graph_GetNumInitializers, slots.Graph_GetInitializers, address
            )
            if info is not None
        ]
        if fused_node is None:
            given = slots.many(slots.Graph_GetNumInputs, slots.Graph_GetInputs, address)
        else:
            given = slots.many(slots.Node_GetNumInputs, slots.Node_GetInputs, fused_node)
        inputs = [self._defined(info, scope, known) for info in given if info is not None]
        handles = {
            self._node(node, scope, known): node
            for node in slots.many(slots.Graph_GetNumNodes, slots.Graph_GetNodes, address)
            if node is not None
        }
        if fused_node is None:
            given = slots.many(slots.Graph_GetNumOutputs, slots.Graph_GetOutputs, address)
        else:
            given = slots.many(slots.Node_GetNumOutputs, slots.Node_GetOutputs, fused_node)
        outputs = [self._used(info, scope, known) for info in given if info is not None]
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=handles,
            initializers=constants,
            opset_imports=slots.opsets(address),
            name=slots.text(slots.Graph_GetName, address),
        )
        return graph, handles

    def _value(self, info: int, name: str) -> ir.Value:
        kind, shape = self._types.read(info)
        return ir.Value(name=name, type=kind, shape=shape)

    def _defined(self, info: int, scope: _Scope, known: dict[int, ir.Value]) -> ir.Value:
        """Return the value that this graph defines."""
        found = known.get(info)
        if found is not None:
            return found
        name = self.slots.text(self.slots.GetValueInfoName, info)
        value = scope.by_name.get(name) if name else None
        if value is None:
            value = self._value(info, name)
            scope.by_name[name] = value
        known[info] = value
        return value

    def _used(self, info: int, scope: _Scope, known: dict[int, ir.Value]) -> ir.Value:
        """Return a value that is read here, wherever it is defined."""
        found = known.get(info)
        if found is not None:
            return found
        name = self.slots.text(self.slots.GetValueInfoName, info)
        value = scope.find(name)
        if value is None:
            value = self._value(info, name)
            self._add_constant(info, value)
            self.outer[name] = value
            _outermost(scope).by_name[name] = value
        known[info] = value
        return value

    def _initializer(self, info: int, scope: _Scope, known: dict[int, ir.Value]) -> ir.Value:
        value = self._defined(info, scope, known)
        value.const_value = self._tensor(info, value)
        return value

    def _add_constant(self, info: int, value: ir.Value) -> None:
        slots = self.slots
        if slots.flag(slots.ValueInfo_IsConstantInitializer, info):
            value.const_value = self._tensor(info, value)

    def _tensor(self, info: int, value: ir.Value) -> RuntimeTensor:
        shape = value.shape if value.shape is not None else ir.Shape(())
        dtype = value.dtype or ir.DataType.UNDEFINED
        return RuntimeTensor(self.slots, info, value.name or "", dtype, shape.copy(), self.lease)

    def _node(self, handle: int, scope: _Scope, known: dict[int, ir.Value]) -> ir.Node:
        slots = self.slots
        read = slots.many(slots.Node_GetNumInputs, slots.Node_GetInputs, handle)
        made = slots.many(slots.Node_GetNumOutputs, slots.Node_GetOutputs, handle)
        inputs = [None if info is None else self._used(info, scope, known) for info in read]
        attributes = self._attributes.read(handle)
        for name, body in subgraphs(slots, handle):
            attributes.append(ir.AttrGraph(name, self.graph(body, scope)[0]))
        return ir.Node(
            slots.text(slots.Node_GetDomain, handle),
            slots.text(slots.Node_GetOperatorType, handle),
            inputs,
            attributes,
            outputs=[
                ir.Value(name="") if info is None else self._defined(info, scope, known)
                for info in made
            ],
            version=slots.number(slots.Node_GetSinceVersion, handle),
            name=slots.text(slots.Node_GetName, handle),
        )


def _outermost(scope: _Scope) -> _Scope:
    while scope.around is not None:
        scope = scope.around
    return scope
