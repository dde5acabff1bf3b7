"""Graphs of ONNX Runtime's as onnx-ir has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from python_providers import model
from python_view_check import check_against_onnx, watch

import models.catalog
from ortkit.errors import ModelError
from ortkit.provider import GraphView

NESTED = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] x, bool c) => (float[n, 4] y) <float[4] w = {1, 2, 3, 4}>
{
  r = Relu(x)
  y = If (c) <
    then_branch = t () => (float[n, 4] p) { u = Add(r, w)  p = Mul(u, r) },
    else_branch = e () => (float[n, 4] q) {
      i = Identity(r)
      q = If (c) <
        then_branch = a () => (float[n, 4] v) { v = Add(i, w) },
        else_branch = b () => (float[n, 4] z) { z = Sub(r, w) }
      >
    }
  >
}
"""
LOOP = """<ir_version: 10, opset_import: ["" : 20]>
g (int64 n, float[4] x) => (float[4] y)
{
  t = Constant <value = bool {1}> ()
  y = Loop (n, t, x) <body = b (int64 i, bool k, float[4] s) => (bool kk, float[4] ss)
    { kk = Identity(k)  ss = Add(s, x) }>
}
"""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", sorted(models.catalog.BUILDERS))
def test_a_model_is_read_as_onnx_reads_it(name: str) -> None:
    for spelling in models.catalog.spellings(name):
        proto = models.catalog.build(name, "tiny", spelling, 0)

        main: list[GraphView] = []

        def look(
            view: GraphView, proto: onnx.ModelProto = proto, main: list[GraphView] = main
        ) -> None:
            # ONNX Runtime asks again once it has written out functions that nobody took.
            if view.parent_op is None and not main:
                check_against_onnx(view, proto)
                main.append(view)

        watch(proto.SerializeToString(), look)
        assert main


@pytest.mark.parametrize("text", [NESTED, LOOP], ids=["if", "loop"])
def test_control_flow_is_read_as_onnx_reads_it(text: str) -> None:
    proto = onnx.parser.parse_model(text)

    def look(view: GraphView) -> None:
        if view.parent_op is None:
            check_against_onnx(view, proto)

    assert watch(proto.SerializeToString(), look) > 1


def test_graphs_in_graphs_come_first_and_know_what_is_around_them() -> None:
    seen: dict[str, tuple[str | None, set[str], set[str]]] = {}

    def look(view: GraphView) -> None:
        outer = {value.name or "" for value in view.outer_values}
        fixed = {value.name or "" for value in view.outer_values if value.const_value is not None}
        seen[view.name] = (view.parent_op, outer, fixed)
        for value in view.outer_values:
            assert value.producer() is None
            assert value.dtype == (ir.DataType.BOOL if value.name == "c" else ir.DataType.FLOAT)
            if value.const_value is not None:
                assert value.const_value.numpy().tolist() == [1, 2, 3, 4]

    watch(model(NESTED), look)
    assert list(seen)[-1] == "g"
    assert seen == {
        "g": (None, set(), set()),
        "t": ("If", {"r", "w"}, {"w"}),
        "e": ("If", {"r", "w", "c"}, {"w"}),
        "a": ("If", {"i", "w"}, {"w"}),
        "b": ("If", {"r", "w"}, {"w"}),
    }


def test_a_value_in_a_branch_is_the_value_outside() -> None:
    def look(view: GraphView) -> None:
        if view.parent_op is not None:
            return
        relu, branch = view
        body = branch.attributes["then_branch"].as_graph()
        assert next(iter(body)).inputs[0] is relu.outputs[0]
        assert next(iter(body)).inputs[1] is view.initializers["w"]

    watch(model(NESTED), look)


def test_a_graph_in_a_graph_is_a_model_of_its_own() -> None:
    results = []

    def look(view: GraphView) -> None:
        if view.name != "e":
            return
        copy = view.to_model()
        proto = ir.to_proto(copy)
        onnx.checker.check_model(proto)
        made = ort.InferenceSession(proto.SerializeToString())
        feeds = {"r": np.full((2, 4), 8, np.float32), "c": np.array(False)}
        results.append(made.run(None, feeds)[0])
        assert all(value.name != "i" for value in copy.graph.inputs)
        assert next(iter(view)).inputs[0] is view.outer_values[0]

    watch(model(NESTED), look)
    assert results[0].tolist() == [[7, 6, 5, 4]] * 2


def test_symbols_and_ranks_are_told() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n, 4, m] x, float z, float[] e) => (float[n, 4, m] y, int64[k, 1] i, float[q] o)
    { y = Add(x, z)  j = NonZero(z)  i = Transpose(j)  o = Identity(e) }"""

    def look(view: GraphView) -> None:
        x, z, _ = view.inputs
        assert x.shape == ["n", 4, "m"]
        assert z.shape == []
        assert view.outputs[0].dtype == ir.DataType.FLOAT
        assert view.outputs[1].dtype == ir.DataType.INT64

    watch(model(text), look)


def test_types_that_are_no_tensors_are_told() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (seq(float[n]) s, optional(float[n]) o) => (float[m] y, bool b)
    { y = ConcatFromSequence<axis = 0>(s)  b = OptionalHasElement(o) }"""

    def look(view: GraphView) -> None:
        sequence, optional = view.inputs
        assert sequence.type == ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))
        assert optional.type == ir.OptionalType(ir.TensorType(ir.DataType.FLOAT))
        assert sequence.shape is None

    watch(model(text), look)


def test_left_out_inputs_and_outputs_stay_in_place() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[4] x, float hi) => (float[4] y) { y = Clip(x, , hi) }"""

    def look(view: GraphView) -> None:
        (node,) = view
        assert [value if value is None else value.name for value in node.inputs] == [
            "x", None, "hi",
        ]  # fmt: skip

    watch(model(text), look)


def constant_model(array: TensorProto) -> bytes:
    """Return a model that reads one constant."""
    node = helper.make_node("Identity", ["w"], ["y"], name="it")
    shape = list(array.dims)
    output = helper.make_tensor_value_info("y", array.data_type, shape)
    graph = helper.make_graph([node], "g", [], [output], [array])
    opsets = [helper.make_opsetid("", 21)]
    serialized: bytes = helper.make_model(
        graph, opset_imports=opsets, ir_version=10
    ).SerializeToString()
    return serialized


@pytest.mark.parametrize(
    "kind",
    [
        TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16,
        TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT64,
        TensorProto.BOOL, TensorProto.FLOAT8E4M3FN,
    ],
    ids=TensorProto.DataType.Name,
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 3, 64])
def test_constants_of_each_type_are_read(kind: int, count: int) -> None:
    values = [index % 2 for index in range(count)]
    array = helper.make_tensor("w", kind, [count, 1], values)
    read = []

    def look(view: GraphView) -> None:
        tensor = view.initializers["w"].const_value
        assert tensor is not None
        assert tensor.dtype == kind
        assert tuple(tensor.shape) == (count, 1)
        read.append(np.array(tensor.numpy(), np.float32).reshape(-1).tolist())
        assert tensor.tobytes() == ir.from_proto(array).tobytes()

    watch(constant_model(array), look)
    assert read == [values]


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4], ids=["int4", "uint4"])
@pytest.mark.parametrize("count", [1, 3, 64])
def test_constants_of_less_than_a_byte_are_read(kind: int, count: int) -> None:
    values = [index % 8 for index in range(count)]
    array = helper.make_tensor("w", kind, [count], values)
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["y"])
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [1.0])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [count])
    graph = helper.make_graph([node], "g", [], [output], [array, scale])
    opsets = [helper.make_opsetid("", 21)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    read = []

    def look(view: GraphView) -> None:
        tensor = view.initializers["w"].const_value
        assert tensor is not None
        read.append(np.array(tensor.numpy(), np.int32).tolist())

    watch(proto.SerializeToString(), look)
    assert read == [values]


def test_text_and_empty_constants_are_read() -> None:
    text = helper.make_tensor("w", TensorProto.STRING, [2, 2], [b"a", b"", "ü".encode(), b"dd"])
    empty = helper.make_tensor("w", TensorProto.FLOAT, [0, 3], [])

    def look_text(view: GraphView) -> None:
        found = view.initializers["w"].const_value
        assert found is not None
        assert found.numpy().tolist() == [[b"a", b""], ["ü".encode(), b"dd"]]

    def look_empty(view: GraphView) -> None:
        found = view.initializers["w"].const_value
        assert found is not None
        assert found.numpy().shape == (0, 3)

    watch(constant_model(text), look_text)
    watch(constant_model(empty), look_empty)


def test_constants_are_read_where_they_lie_and_not_later() -> None:
    array = helper.make_tensor("w", TensorProto.FLOAT, [256], range(256))
    kept: list[ir.TensorProtocol] = []

    def look(view: GraphView) -> None:
        tensor = view.initializers["w"].const_value
        assert tensor is not None
        first, second = tensor.numpy(), tensor.numpy()
        assert first.ctypes.data == second.ctypes.data
        assert not first.flags.writeable
        kept.append(tensor)

    watch(constant_model(array), look)
    with pytest.raises(ModelError, match="initializer 'w' is read after the callback"):
        kept[0].numpy()


def test_attributes_of_each_type_are_read() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 3, "com.microsoft" : 1]>
    g (float[1, 3, 8, 8] x, string[n] s) => (float[1, 3, 8, 8] y, int64[n] k, float[1, 8, 8, 3] t)
    {
      a = Conv <kernel_shape = [1, 1], auto_pad = "SAME_UPPER"> (x, w)
      y = LeakyRelu <alpha = 0.125> (a)
      k = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "bc", ""], values_int64s = [1, 2, 3],
        default_int64 = -7> (s)
      t = Transpose <perm = [0, 2, 3, 1]> (a)
    }"""
    proto = onnx.parser.parse_model(text)
    weight = np.ones((3, 3, 1, 1), np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))

    def look(view: GraphView) -> None:
        check_against_onnx(view, proto)
        encoder = next(node for node in view if node.op_type == "LabelEncoder")
        assert encoder.attributes["keys_strings"].value == ("a", "bc", "")
        assert encoder.version == 2

    watch(proto.SerializeToString(), look)


def test_many_and_long_attributes_are_read() -> None:
    long = list(range(3000))
    keys = ", ".join(map(str, long))
    text = f"""<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 3]>
    g (int64[n] s) => (int64[n] k) {{ k = ai.onnx.ml.LabelEncoder <keys_int64s = [{keys}],
      values_int64s = [{keys}], default_int64 = 0> (s) }}"""

    def look(view: GraphView) -> None:
        (node,) = view
        assert node.attributes["keys_int64s"].value == tuple(long)

    watch(model(text), look)


def test_the_models_metadata_is_told() -> None:
    proto = onnx.parser.parse_model(LOOP)
    proto.producer_name, proto.domain, proto.model_version = "someone", "here", 7
    proto.doc_string = "what it is"
    proto.metadata_props.add(key="author", value="ü")
    proto.metadata_props.add(key="empty", value="")

    def look(view: GraphView) -> None:
        told = view.metadata
        assert (told.producer, told.domain, told.version) == ("someone", "here", 7)
        assert told.description == "what it is"
        assert dict(told.properties) == {"author": "ü", "empty": ""}

    watch(proto.SerializeToString(), look)


def test_the_models_path_is_told(tmp_path: Any) -> None:
    path = tmp_path / "loop.onnx"
    path.write_bytes(model(LOOP))
    paths = []
    watch(str(path), lambda view: paths.append(view.model_path))
    assert paths == [str(path)] * 2
    watch(model(LOOP), lambda view: paths.append(view.model_path))
    assert paths[2:] == ["", ""]


def test_external_constants_are_read(tmp_path: Any) -> None:
    path = tmp_path / "model.onnx"
    array = helper.make_tensor("w", TensorProto.FLOAT, [512], np.arange(512.0).tolist())
    proto = onnx.load_from_string(constant_model(array))
    onnx.save(proto, path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    read = []

    def look(view: GraphView) -> None:
        tensor = view.initializers["w"].const_value
        assert tensor is not None
        read.append(np.array(tensor.numpy()))

    watch(str(path), look)
    assert read[0].tolist() == list(range(512))
