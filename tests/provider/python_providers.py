"""Models and providers that the tests of providers in Python share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort

import ortkit
from ortkit.provider import GraphView

CHAIN = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] a, float[n, 4] b, float[n, 4] c) => (float[n, 4] y) <float[1] w = {2}>
{ s = Add(a, b)  m = Mul(s, c)  r = Relu(m)  p = Softmax<axis = -1>(r)  y = Add(p, w) }
"""
NUMPY: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Mul": np.multiply,
    "Relu": lambda x: np.maximum(x, 0),
}


def model(text: str) -> bytes:
    """Return a model in ONNX's text as bytes."""
    serialized: bytes = onnx.parser.parse_model(text).SerializeToString()
    return serialized


def options(*, optimize: bool = False) -> ort.SessionOptions:
    """Return options of a session that records what runs where."""
    made = ort.SessionOptions()
    made.log_severity_level = 4
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    made.add_session_config_entry("session.disable_cpu_ep_fallback", "0")
    if not optimize:
        made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return made


def session(
    source: bytes | str,
    name: str,
    *,
    settings: Mapping[str, str] | None = None,
    session_options: ort.SessionOptions | None = None,
) -> ort.InferenceSession:
    """Return a session in which the provider of this name comes first, and never another try."""
    made = session_options if session_options is not None else options()
    devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
    assert devices, f"{name} has no devices"
    made.add_provider_for_devices(devices, dict(settings or {}))
    return ort.InferenceSession(source, made)


def placement(made: ort.InferenceSession, name: str) -> list[str]:
    """Return the operators that a provider runs in a session, in no special order."""
    return sorted(
        node.op_type
        for part in made.get_provider_graph_assignment_info()
        if part.ep_name == name
        for node in part.get_nodes()
    )


@contextmanager
def registered(provider: ortkit.ExecutionProvider) -> Iterator[str]:
    """Register a provider for a while."""
    name = ortkit.register_provider(provider)
    try:
        yield name
    finally:
        ortkit.unregister_provider(name)


def runs_of(graph: GraphView, ops: Mapping[str, object]) -> list[list[ir.Node]]:
    """Return stretches of nodes in a row whose operators are among `ops`."""
    groups: list[list[ir.Node]] = [[]]
    for node in graph:
        if node.op_type in ops:
            groups[-1].append(node)
        elif groups[-1]:
            groups.append([])
    return [group for group in groups if group]


def interpreter(subgraph: GraphView) -> Callable[..., Any]:
    """Return a function that computes a subgraph of `NUMPY`'s operators."""
    names = [value.name for value in subgraph.inputs]
    nodes = list(subgraph)
    outputs = [value.name for value in subgraph.outputs]
    constants = {
        name: np.array(value.const_value.numpy()) for name, value in subgraph.initializers.items()
    }

    def run(*arrays: Any) -> Any:
        values = {**constants, **dict(zip(names, arrays, strict=True))}
        for node in nodes:
            inputs = [values[value.name] for value in node.inputs]
            values[node.outputs[0].name] = NUMPY[node.op_type](*inputs)
        return tuple(values[name] for name in outputs)

    return run


class NumpyProvider(ortkit.ExecutionProvider):
    """Takes Add, Mul and Relu, and computes them with numpy."""

    name: ClassVar[str] = "NumpyExecutionProvider"

    def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
        return runs_of(graph, NUMPY)

    def compile(self, subgraph: GraphView) -> Callable[..., Any]:
        return interpreter(subgraph)


def chain_feeds(rows: int = 3) -> dict[str, Any]:
    """Return inputs for CHAIN."""
    random = np.random.default_rng(7)
    return {name: random.standard_normal((rows, 4), dtype=np.float32) for name in "abc"}


def chain_result(a: Any, b: Any, c: Any) -> Any:
    """Return what CHAIN makes of them."""
    relu = np.maximum((a + b) * c, 0)
    exponentials = np.exp(relu - relu.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True) + 2
