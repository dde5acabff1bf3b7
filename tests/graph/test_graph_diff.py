"""What `diff` finds between two models, and what it does not report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.parser

from ortkit.graph.analysis.diff import Change, diff_models

BASE = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] x) => (float[n, 4] y)
<float[4] w = {1, 2, 3, 4}>
{ a = Relu(x)  b = Identity(a)  s = Softmax<axis=-1>(b)  y = Add(s, w) }
"""


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def told(changes: Sequence[Change]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(change.kind, change.name, change.details) for change in changes]


def test_a_model_does_not_differ_from_itself() -> None:
    found = diff_models(parsed(BASE), parsed(BASE))
    assert found.is_same
    assert found.ops == ()


def test_removed_and_changed_nodes() -> None:
    after = BASE.replace("b = Identity(a)  ", "").replace("(b)", "(a)")
    found = diff_models(parsed(BASE), parsed(after))
    assert [(op.op, op.before, op.after) for op in found.ops] == [("Identity", 1, 0)]
    assert told(found.nodes) == [
        ("removed", "b", ()),
        ("changed", "s", ("inputs b -> a",)),
    ]


def test_operator_and_attribute_changes() -> None:
    after = BASE.replace("Relu", "Tanh").replace("axis=-1", "axis=1")
    found = diff_models(parsed(BASE), parsed(after))
    assert told(found.nodes) == [
        ("changed", "a", ("operator Relu -> Tanh",)),
        ("changed", "s", ("axis -1 -> 1",)),
    ]
    assert found.nodes[0].before == "Relu"


def test_a_renamed_value_is_found_by_the_name_of_its_node() -> None:
    before, after = (
        parsed(BASE),
        parsed(BASE.replace("a = Relu", "z = Relu").replace("(a)", "(z)")),
    )
    before.graph.node[0].name = after.graph.node[0].name = "first"
    found = diff_models(before, after)
    assert told(found.nodes)[0] == ("changed", "first", ("outputs a -> z",))
    assert {node.kind for node in found.nodes} == {"changed"}


def test_weights_by_value() -> None:
    after = parsed(BASE)
    after.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.array([1, 2, 3, 4.5], np.float32), "w")
    )
    found = diff_models(parsed(BASE), after)
    assert told(found.weights) == [("changed", "w", ("values, by 0.5 at most",))]
    assert found.nodes == ()


def test_nan_weights_are_equal_and_signed_zeros_are_not() -> None:
    def with_weights(values: list[float]) -> onnx.ModelProto:
        model = parsed(BASE)
        array = np.array(values, np.float32)
        model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, "w"))
        return model

    nan, zero = [float("nan"), 0.0, 1, 2], [float("nan"), -0.0, 1, 2]
    assert diff_models(with_weights(nan), with_weights(nan)).is_same
    assert not diff_models(with_weights(nan), with_weights(zero)).is_same


def test_interface_and_header() -> None:
    after = parsed(BASE.replace("float[n, 4] x", "float[m, 4] x").replace('"" : 20', '"" : 21'))
    after.metadata_props.add(key="k", value="v")
    found = diff_models(parsed(BASE), after)
    assert told(found.interface) == [("changed", "input x", ("type or shape",))]
    assert {(item.kind, item.name) for item in found.header} == {
        ("changed", "opset ai.onnx"),
        ("added", "metadata k"),
    }


def test_the_order_of_outputs() -> None:
    text = BASE.replace("=> (float[n, 4] y)", "=> (float[n, 4] y, float[n, 4] s)")
    swapped = BASE.replace("=> (float[n, 4] y)", "=> (float[n, 4] s, float[n, 4] y)")
    found = diff_models(parsed(text), parsed(swapped))
    assert [(item.name, item.before, item.after) for item in found.interface] == [
        ("output order", "y, s", "s, y")
    ]


def test_function_bodies() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
        g (float[4] x) => (float[4] y) { y = own.F(x) }
        <domain: "own", opset_import: ["" : 20]> F (a) => (b) { b = Relu(a) }"""
    found = diff_models(parsed(text), parsed(text.replace("Relu", "Tanh")))
    assert told(found.functions) == [("changed", "own::F", ("1 nodes changed",))]
