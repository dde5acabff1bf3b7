"""What a caller sees of a model survives: names, documentation, metadata, defaults of inputs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortkit import OptimizeOptions, optimize
from tests.e2e.judge import interface
from tests.e2e.suites import run

pytest.importorskip("onnxruntime")
LEVELS = range(4)


def documented() -> onnx.ModelProto:
    """A model that loses its last node, and has something written wherever one can write."""
    x = helper.make_tensor_value_info("pixel values", TensorProto.FLOAT, ["batch", 2], "an image")
    y = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2], "scores")
    z = helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["batch", 2])
    nodes = [
        helper.make_node("Exp", ["pixel values"], ["hidden"], "first", doc_string="node"),
        helper.make_node("Neg", ["hidden"], ["t"], "second"),
        helper.make_node("Identity", ["t"], ["logits"], "third"),
    ]
    graph = helper.make_graph(nodes, "main graph", [x], [y, z], doc_string="the graph")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("unused.domain", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model.producer_name, model.producer_version = "exporter", "1.2"
    model.domain, model.model_version, model.doc_string = "org.example", 7, "the model"
    helper.set_model_props(model, {"labels": "cat,dog", "license": "MIT"})
    model.graph.node[0].metadata_props.add(key="scope", value="layer 0")
    model.graph.output[0].metadata_props.add(key="unit", value="logit")
    return model


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_written_in_a_model_survives(level: int) -> None:
    before = documented()
    result = optimize(
        before, OptimizeOptions(level=level, verify=False, check_load=False, kernels="off")
    )
    after = ir.to_proto(result.model)
    assert len(after.graph.node) == 2
    assert interface(after) == interface(before)
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(after, field) == getattr(before, field), field
    kept = {entry.key: entry.value for entry in after.metadata_props}
    assert kept == {"labels": "cat,dog", "license": "MIT"}
    assert (after.graph.name, after.graph.doc_string) == ("main graph", "the graph")
    assert after.graph.node[0] == before.graph.node[0]
    assert {(o.domain, o.version) for o in before.opset_import} <= {
        (o.domain, o.version) for o in after.opset_import
    }


def defaults(ir_version: int) -> onnx.ModelProto:
    """A model whose weights are listed as inputs; `unused` is read by nothing."""
    names = ("a", "b", "unused")
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in names]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    weights = [
        numpy_helper.from_array(np.array([i, 2], np.float32), name)
        for i, name in enumerate(names, start=1)
    ]
    nodes = [
        helper.make_node("Pow", ["a", "b"], ["c"]),
        helper.make_node("Div", ["x", "c"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x, *shapes], [y], weights)
    opsets = [helper.make_opsetid("", 9)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


@pytest.mark.parametrize("level", LEVELS)
def test_a_default_that_a_caller_may_replace_is_no_constant(level: int) -> None:
    before = defaults(4)
    result = optimize(
        before, OptimizeOptions(level=level, verify=False, check_load=False, kernels="off")
    )
    after = ir.to_proto(result.model)
    assert [node.op_type for node in after.graph.node] == ["Pow", "Div"]
    assert interface(after) == interface(before)
    given = {name: np.array([3, 4], np.float32) for name in ("x", "a", "b")}
    for feeds in ({"x": given["x"]}, given):
        np.testing.assert_array_equal(run(after, feeds), run(before, feeds))
    assert not np.array_equal(run(after, {"x": given["x"]}), run(after, given))


@pytest.mark.parametrize("level", LEVELS)
def test_before_ir_version_4_initializers_are_constants(level: int) -> None:
    before = defaults(3)
    result = optimize(
        before, OptimizeOptions(level=level, verify=False, check_load=False, kernels="off")
    )
    after = ir.to_proto(result.model)
    onnx.checker.check_model(after)  # every initializer is listed as an input
    assert [node.op_type for node in after.graph.node] == (
        ["Pow", "Div"] if level == 0 else ["Mul"]
    )
    assert interface(after) == interface(before)
    assert "unused" not in [value.name for value in after.graph.input]
    feeds = {"x": np.array([3, 4], np.float32)}
    np.testing.assert_allclose(run(after, feeds), run(before, feeds), rtol=1e-6)


def test_a_model_in_memory_is_not_changed() -> None:
    before = documented()
    model = ir.from_proto(before)
    text = ir.to_proto(model).SerializeToString(deterministic=True)
    optimize(model, OptimizeOptions(level=3, verify=False, check_load=False, kernels="off"))
    assert ir.to_proto(model).SerializeToString(deterministic=True) == text


def test_constants_of_a_model_in_memory_keep_their_names() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[2] x, bool c) => (float[2] y) {
              y = If (c) <
                then_branch = t () => (float[2] a) {
                  k = Constant<value = float[2] named {1,2}>()
                  a = Add(x, k)
                },
                else_branch = e () => (float[2] b) { b = Neg(x) }>
            }"""
        )
    )
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    optimize(model, OptimizeOptions(level=3, verify=False, check_load=False, kernels="off"))
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
