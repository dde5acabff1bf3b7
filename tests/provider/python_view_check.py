"""A graph as a provider sees it, held against the model as onnx reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from python_providers import options, registered, session

import ortkit
from ortkit.provider import GraphView


class Watcher(ortkit.ExecutionProvider):
    """Shows a test each graph, and takes no node."""

    name: ClassVar[str] = "WatchingExecutionProvider"

    def __init__(self, look: Callable[[GraphView], None]) -> None:
        self.look = look

    def get_capability(self, graph: GraphView) -> list[ir.Node]:
        self.look(graph)
        return []

    def compile(self, subgraph: GraphView) -> Callable[..., Any]:
        raise AssertionError("nothing was taken")


def watch(source: bytes | str, look: Callable[[GraphView], None]) -> int:
    """Show `look` each graph of a model; returns how many there were."""
    seen: list[GraphView] = []
    failed: list[BaseException] = []

    def shown(view: GraphView) -> None:
        seen.append(view)
        try:
            look(view)
        except BaseException as error:
            failed.append(error)
            raise

    with registered(Watcher(shown)) as name:
        try:
            session(source, name, settings={"strict": "1"}, session_options=options())
        finally:
            if failed:
                raise failed[0]
    assert seen
    return len(seen)


def check_against_onnx(view: GraphView, proto: onnx.ModelProto) -> None:
    """Compare a main graph with the model that the session was created from."""
    assert dict(view.opset_imports).items() >= _opsets(proto).items()
    assert view.ir_version == proto.ir_version
    assert [value.name for value in view.outputs] == [item.name for item in proto.graph.output]
    assert set(view.handles) == set(view.graph)
    assert len(set(view.handles.values())) == len(view)
    check_graph(view.graph, proto.graph)


def _opsets(proto: onnx.ModelProto) -> dict[str, int]:
    used = {node.domain for node in proto.graph.node} | {""}
    return {item.domain: item.version for item in proto.opset_import if item.domain in used}


def check_graph(graph: ir.Graph, proto: onnx.GraphProto) -> None:
    """Compare a graph and those in it: values, nodes, attributes, constants."""
    constants = {item.name: numpy_helper.to_array(item) for item in proto.initializer}
    expected = {}
    for node in proto.node:
        if node.op_type == "Constant" and node.domain == "":
            # ONNX Runtime makes initializers of them.
            constants[node.output[0]] = _constant(node)
        else:
            expected[tuple(node.output)[:1]] = node
    found = {(node.outputs[0].name,): node for node in graph}
    assert set(found) == set(expected)
    for outputs, wanted in expected.items():
        check_node(found[outputs], wanted)
    for name, value in graph.initializers.items():
        assert value.const_value is not None
        array = value.const_value.numpy()
        assert array.dtype == constants[name].dtype or array.dtype.kind == "V"
        assert array.shape == constants[name].shape
        assert _bytes(array) == _bytes(constants[name]), name
    read = {value.name for node in graph for value in node.inputs if value is not None}
    assert read & set(constants) == read & set(graph.initializers)


def _bytes(array: Any) -> Any:
    return array.tolist() if array.dtype.kind == "O" else array.tobytes()


def _constant(node: onnx.NodeProto) -> Any:
    (attribute,) = node.attribute
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.name == "value":
        return numpy_helper.to_array(value)
    kind = {"value_float": np.float32, "value_floats": np.float32}.get(attribute.name, np.int64)
    return np.asarray(value, kind)


def check_node(node: ir.Node, wanted: onnx.NodeProto) -> None:
    """Compare a node: ONNX Runtime may add attributes, each with the schema's default."""
    assert (node.op_type, node.domain) == (wanted.op_type, wanted.domain)
    assert (node.name or "") == wanted.name
    inputs = ["" if value is None else value.name for value in node.inputs]
    assert _trimmed(inputs) == _trimmed(list(wanted.input))
    assert _trimmed([value.name or "" for value in node.outputs]) == _trimmed(list(wanted.output))
    given = {item.name: item for item in wanted.attribute}
    for name, attribute in given.items():
        check_attribute(node.attributes[name], attribute)
    defaults = _defaults(node)
    for name in set(node.attributes) - set(given):
        check_attribute(node.attributes[name], defaults[name])


def _trimmed(names: list[str]) -> list[str]:
    while names and not names[-1]:
        names = names[:-1]
    return names


def _defaults(node: ir.Node) -> Mapping[str, onnx.AttributeProto]:
    assert node.version is not None
    schema = onnx.defs.get_schema(node.op_type, node.version, node.domain)
    assert schema.since_version == node.version
    return {name: attribute.default_value for name, attribute in schema.attributes.items()}


def check_attribute(found: ir.Attr, wanted: onnx.AttributeProto) -> None:
    """Compare an attribute of any type."""
    value = onnx.helper.get_attribute_value(wanted)
    assert found.type.name == onnx.AttributeProto.AttributeType.Name(wanted.type)
    if wanted.type == onnx.AttributeProto.GRAPH:
        check_graph(found.as_graph(), value)
    elif wanted.type == onnx.AttributeProto.TENSOR:
        assert _bytes(found.as_tensor().numpy()) == _bytes(numpy_helper.to_array(value))
    elif wanted.type == onnx.AttributeProto.STRING:
        assert found.as_string() == value.decode()
    elif wanted.type == onnx.AttributeProto.STRINGS:
        assert list(found.as_strings()) == [item.decode() for item in value]
    elif wanted.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        assert list(found.value) == list(value)
    else:
        assert found.value == value
