"""Kernels for single operators, and arrays of each type."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from python_providers import model, options, placement, registered, session

import ortkit
from ortkit.errors import UserError
from ortkit.provider import GraphView, KernelCall, OpKernel, PythonFunction

POOLED = """<ir_version: 10, opset_import: ["" : 20]>
g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z, float[n] q)
{
  r = Relu(x)
  y = LeakyRelu <alpha = 0.25> (r)
  z = Softmax (x)
  k = Constant <value_ints = [3, 2]> ()
  s = Reshape (x, k)
  t = Transpose <perm = [1, 0]> (s)
  q = Concat <axis = 0> (a, b, a)
  a = ReduceMax <keepdims = 0> (t, k0)
  k0 = Constant <value_ints = [0]> ()
  b = Clip (a, , hi)
  hi = Constant <value_float = 0.5> ()
}
"""
RELU = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n] x) => (float[n] y) { y = Relu(x) }
"""


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


def provider(table: dict[Any, Any]) -> ortkit.ExecutionProvider:
    """Return a provider with kernels."""

    class Kernels(ortkit.ExecutionProvider):
        name: ClassVar[str] = "OpExecutionProvider"
        kernels = table

    return Kernels()


def softmax(x: Any, *, axis: int) -> Any:
    exponentials = np.exp(x - x.max(axis, keepdims=True))
    return exponentials / exponentials.sum(axis, keepdims=True)


TABLE: dict[Any, Any] = {
    ("", "Relu", 14): relu,
    ("", "LeakyRelu", (6, 16)): lambda x, *, alpha: np.where(x < 0, np.float32(alpha) * x, x),
    ("", "Softmax", 13): softmax,
    ("", "Reshape", 19): lambda x, shape, *, allowzero: x.reshape(shape),
    ("", "Transpose", 13): lambda x, *, perm=None: np.transpose(x, perm),
    ("", "Concat", 13): lambda *arrays, axis: np.concatenate(arrays, axis),
    ("", "Clip", 13): lambda x, low=None, high=None: np.clip(x, low, high),
    ("", "ReduceMax", (18, 20)): (
        lambda x, axes=None, *, keepdims, noop_with_empty_axes: x.max(
            tuple(axes), keepdims=bool(keepdims)
        )
    ),
}


def topological(text: str) -> bytes:
    """Return a model whose nodes are put in order."""
    loaded = ir.from_proto(helper_model(text))
    loaded.graph.sort()
    serialized: bytes = ir.to_proto(loaded).SerializeToString()
    return serialized


def helper_model(text: str) -> Any:
    import onnx.parser

    return onnx.parser.parse_model(text)


def test_single_operators_run_in_python() -> None:
    x = np.array([[-1, 2, 0.25], [0.5, -3, 1]], np.float32)
    plain = ort.InferenceSession(topological(POOLED), options()).run(None, {"x": x})
    with registered(provider(TABLE)) as name:
        made = session(topological(POOLED), name)
        assert placement(made, name) == sorted(key[1] for key in TABLE)
        for _ in range(2):
            for found, wanted in zip(made.run(None, {"x": x}), plain, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_version_that_the_model_has_not_is_not_claimed() -> None:
    with registered(provider({("", "Relu", 14): relu})) as name:
        for opset, count in ((13, 0), (14, 1)):
            made = session(model(RELU.replace('"" : 20', f'"" : {opset}')), name)
            assert len(placement(made, name)) == count


def test_a_type_that_a_kernel_does_not_take_is_not_claimed() -> None:
    kernel = OpKernel(relu, types={"T": [ir.DataType.DOUBLE]})
    with registered(provider({("", "Relu", 14): kernel})) as name:
        for kind, count in (("float", 0), ("double", 1)):
            made = session(model(RELU.replace("float", kind)), name)
            assert len(placement(made, name)) == count


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({("", "Relu", 15): relu}, "Relu has no version 15; its versions: 1, 6, 13, 14"),
        ({("", "Rellu", 14): relu}, "ONNX has no operator 'Rellu' in the domain ''"),
        ({"Relu": relu}, "'Relu' is no operator; name kernels as"),
        ({("", "Relu", (14, 6)): relu}, "is no operator; name kernels as"),
        ({("", "Relu", 14): 7}, "the kernel for Relu is of type int"),
        (
            {("", "Softmax", 13): relu},
            "the kernel for Softmax does not take the attribute 'axis'; add it as",
        ),
        (
            {("", "Relu", 14): OpKernel(relu, types={"U": [ir.DataType.FLOAT]})},
            "Relu has no type parameter 'U'; it has T",
        ),
    ],
)
def test_kernels_that_are_not_right_are_refused(table: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        ortkit.register_provider(provider(table))
    assert message in str(caught.value)


def test_what_a_kernel_raises_names_operator_and_node() -> None:
    def explode(x: Any) -> Any:
        raise ValueError("boom")

    with registered(provider({("", "Relu", 14): explode})) as name:
        made = session(model(RELU), name)
        with pytest.raises(Exception, match=r"OpExecutionProvider: Relu: ValueError: boom"):
            made.run(None, {"x": np.zeros(2, np.float32)})


def test_operators_of_other_domains_run_in_python() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float[n] x) => (float[n] y) { y = com.microsoft.QuickGelu <alpha = 2.0> (x) }"""

    def gelu(x: Any, *, alpha: float) -> Any:
        return (x / (1 + np.exp(-np.float32(alpha) * x))).astype(np.float32)

    with registered(provider({("com.microsoft", "QuickGelu", 1): gelu})) as name:
        made = session(model(text), name)
        assert placement(made, name) == ["QuickGelu"]
        found = made.run(None, {"x": np.array([1], np.float32)})[0]
        np.testing.assert_allclose(found, [0.8807971], rtol=1e-6)


def test_nodes_and_groups_go_together() -> None:
    class Both(ortkit.ExecutionProvider):
        name = "OpExecutionProvider"
        kernels: ClassVar[Any] = {("", "Relu", 14): relu}

        def get_capability(self, graph: GraphView) -> list[Any]:
            return [node for node in graph if node.op_type in ("Relu", "Neg")]

        def compile(self, subgraph: GraphView) -> Callable[..., Any]:
            compiled.extend(node.op_type for node in subgraph)
            return lambda x: -x

    compiled: list[str] = []
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n] x) => (float[n] y) { r = Relu(x)  y = Neg(r) }"""
    with registered(Both()) as name:
        made = session(model(text), name)
        assert placement(made, name) == ["Neg", "Relu"]
        assert made.run(None, {"x": np.array([-1, 2], np.float32)})[0].tolist() == [0, -2]
    assert compiled == ["Neg"]


class Same(ortkit.ExecutionProvider):
    """Runs all nodes of a graph as one function."""

    name = "SameExecutionProvider"

    def __init__(self, function: Any) -> None:
        self.function = function

    def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
        return [list(graph)]

    def compile(self, subgraph: GraphView) -> Any:
        return self.function


def identity(kind: int, opset: int = 21) -> bytes:
    """Return y = Identity(x) for a type of element."""
    x, y = (helper.make_tensor_value_info(name, kind, ["n", 3]) for name in "xy")
    node = helper.make_node("Identity", ["x"], ["y"])
    made = helper.make_model(
        helper.make_graph([node], "g", [x], [y]),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=10,
    )
    serialized: bytes = made.SerializeToString()
    return serialized


@pytest.mark.parametrize(
    "kind",
    ["float", "double", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
     "uint64", "bool"],
)  # fmt: skip
def test_arrays_of_each_type(kind: str) -> None:
    dtype = np.dtype({"float": "float32", "double": "float64"}.get(kind, kind))
    seen: list[Any] = []

    def look(x: Any) -> Any:
        seen.append(x.dtype)
        return ~x if kind == "bool" else x + dtype.type(1)

    with registered(Same(look)) as name:
        made = session(identity(int(ir.DataType.from_numpy(dtype))), name)
        for rows in (2, 0, 1):
            x = np.arange(3 * rows).reshape(rows, 3).astype(dtype)
            found = made.run(None, {"x": x})[0]
            np.testing.assert_array_equal(found, ~x if kind == "bool" else x + dtype.type(1))
    assert seen == [dtype] * 3


def test_bfloat16_and_strings() -> None:
    seen: list[Any] = []

    def double(x: Any) -> Any:
        seen.append(x.dtype)
        return x + x

    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n] x) => (float[n] y) { a = Cast<to = 16>(x)  b = Neg(a)  y = Cast<to = 1>(b) }"""

    class Middle(Same):
        def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
            return [[node for node in graph if node.op_type == "Neg"]]

    with registered(Middle(double)) as name:
        found = session(model(text), name).run(None, {"x": np.array([1.5, -2], np.float32)})
        assert found[0].tolist() == [3, -4]
    assert seen == [np.dtype(ml_dtypes.bfloat16)]

    words = np.array([["a", "", "ü" * 40]], dtype=object)
    with registered(Same(lambda x: np.array([[b + b"!" for b in row] for row in x]))) as name:
        made = session(identity(TensorProto.STRING), name)
        for _ in range(2):
            found = made.run(None, {"x": words})
            assert found[0].tolist() == [["a!", "!", "ü" * 40 + "!"]]


def test_scalars_strides_and_results_of_other_kinds() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[2, 3] x) => (float[3, 2] y, float s)
    { y = Transpose(x)  s = ReduceSum<keepdims = 0>(x) }"""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    class Both(Same):
        def compile(self, subgraph: GraphView) -> Any:
            order = [value.name for value in subgraph.outputs]

            def run(x: Any) -> Any:
                results = {"y": x.T, "s": x.sum()}
                return self.function(results[name] for name in order)

            return run

    for kind in (tuple, list):
        with registered(Both(kind)) as name:
            made = session(model(text), name)
            for _ in range(2):
                found = made.run(None, {"x": x})
                np.testing.assert_array_equal(found[0], x.T)
                assert found[1] == 15


def test_results_of_torch() -> None:
    torch = pytest.importorskip("torch")

    def negated(x: Any) -> Any:
        return -torch.from_numpy(np.array(x))

    with registered(Same(negated)) as name:
        made = session(identity(TensorProto.FLOAT), name)
        for _ in range(2):
            found = made.run(None, {"x": np.ones((1, 3), np.float32)})
            assert found[0].tolist() == [[-1, -1, -1]]


def test_shapes_that_change_from_run_to_run() -> None:
    with registered(Same(lambda x: x * 2)) as name:
        made = session(identity(TensorProto.FLOAT), name)
        for rows in [*range(100), 3, 3, 90]:
            x = np.full((rows, 3), rows, np.float32)
            np.testing.assert_array_equal(made.run(None, {"x": x})[0], x * 2)


def test_a_kernel_shows_what_it_does_in_the_trace(tmp_path: Path) -> None:
    if tuple(map(int, ort.__version__.split(".")[:2])) < (1, 25):
        pytest.skip("ONNX Runtime takes events of providers from 1.25 on")

    def work(call: KernelCall, x: Any) -> Any:
        assert call.is_profiling
        assert call.addresses() == (x.ctypes.data,)
        room = call.scratch(64)
        room[:] = 7
        with call.event("inner step", {"tiles": "4"}):
            return x + np.float32(room[3])

    made = options()
    made.enable_profiling = True
    made.profile_file_prefix = str(tmp_path / "trace")
    with registered(Same(PythonFunction(work))) as name:
        opened = session(identity(TensorProto.FLOAT), name, session_options=made)
        found = opened.run(None, {"x": np.ones((1, 3), np.float32)})
        assert found[0].tolist() == [[8, 8, 8]]
        trace = json.loads(Path(opened.end_profiling()).read_text(encoding="utf-8"))
    (event,) = [item for item in trace if item.get("name") == "inner step"]
    assert event["args"]["tiles"] == "4"
    assert event["dur"] >= 0


def test_a_kernel_without_a_trace_shows_nothing() -> None:
    def work(call: KernelCall, x: Any) -> Any:
        with call.event("inner"):
            return x + (1 if call.is_profiling else 2)

    with registered(Same(PythonFunction(work))) as name:
        found = session(identity(TensorProto.FLOAT), name).run(None, {"x": np.ones((1, 3), "f")})
        assert found[0].tolist() == [[3, 3, 3]]


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_elements_smaller_than_a_byte(kind: str) -> None:
    code = {"int4": TensorProto.INT4, "uint4": TensorProto.UINT4}[kind]
    dtype = np.dtype(getattr(ml_dtypes, kind))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    zero = helper.make_tensor("z", code, [], [0])
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [1.0])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    made_model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], [zero, scale]),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    ).SerializeToString()

    class Quantizing(Same):
        drop_constants = True

        def __init__(self, op: str) -> None:
            self.op = op

        def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
            return [[node] for node in graph if node.op_type == self.op]

        def compile(self, subgraph: GraphView) -> Any:
            if self.op == "QuantizeLinear":
                return lambda x: np.rint(x).astype(dtype)

            def back(q: Any) -> Any:
                assert q.dtype == dtype
                return q.astype(np.float32)

            return back

    for op in ("QuantizeLinear", "DequantizeLinear"):
        with registered(Quantizing(op)) as name:
            made = session(made_model, name)
            assert placement(made, name) == [op]
            for values in ([1, 7, 3], [5, 2], [6], []):
                x_array = np.array(values, np.float32)
                assert made.run(None, {"x": x_array})[0].tolist() == values
