"""Transposes cancel across the ops between them, and nothing else moves."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortkit.passes.merge_transposes import MergeTransposes
from ortkit.passes.sink_transposes import SinkTransposes
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline
from tests.passes.graphs import Graph, assert_refused, assert_rewritten, feeds_of, kinds, run

PASSES = (SinkTransposes(),)
THERE, BACK = [0, 2, 3, 1], [0, 3, 1, 2]


def start(g: Graph, name: str = "x", perm: list[int] = THERE) -> str:
    return g.op("Transpose", g.input(2, 3, 4, 5, name=name), perm=perm)


def back(g: Graph, value: str) -> str:
    return g.op("Transpose", value, perm=BACK)


UNARY = ["Relu", "Sigmoid", "Neg", "Tanh", "Elu", "HardSwish", "Identity"]


@pytest.mark.parametrize("op", UNARY)
def test_elementwise(op: str) -> None:
    g = Graph()
    assert_rewritten(g.model(back(g, g.op(op, start(g)))), PASSES, [op], epsilons=0)


def test_further_inputs_of_one_number_stay() -> None:
    g = Graph()
    y = g.op("Clip", start(g), g.data(-0.5), g.data(0.5))
    assert_rewritten(g.model(back(g, y)), PASSES, ["Clip"], epsilons=0)


@pytest.mark.parametrize("shape", [(3,), (4, 1, 3), (2, 1, 5, 1), (2, 4, 5, 3), (1,), (), (5, 1)])
@pytest.mark.parametrize("op", ["Add", "Mul", "PRelu"])
def test_constants_are_moved(op: str, shape: tuple[int, ...]) -> None:
    g = Graph()
    y = g.op(op, start(g), g.constant(*shape))
    assert_rewritten(g.model(back(g, y)), PASSES, [op], epsilons=0)


def test_where_with_a_condition() -> None:
    g = Graph()
    x = start(g)
    y = g.op("Where", g.op("Greater", x, g.constant(3)), x, g.constant(3))
    assert_rewritten(g.model(back(g, y)), PASSES, ["Greater", "Where"], epsilons=0)


def test_two_transposed_operands() -> None:
    g = Graph()
    y = g.op("Relu", g.op("Add", start(g), start(g, "z")))
    assert_rewritten(g.model(y), PASSES, ["Add", "Relu", "Transpose"], epsilons=0)


@pytest.mark.parametrize("opset", [12, 17, 18])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[1, 2], [-1], [1, 2, 3], [-3, -2]])
def test_reductions(axes: list[int], keepdims: int, opset: int) -> None:
    g = Graph(opset=opset)
    x = start(g)
    if opset >= 18:
        y = g.op("ReduceMean", x, g.ints(*axes), keepdims=keepdims)
    else:
        y = g.op("ReduceMean", x, axes=axes, keepdims=keepdims)
    if keepdims:
        assert_rewritten(g.model(back(g, y)), PASSES, ["ReduceMean"], epsilons=2)
    else:
        assert_rewritten(g.model(y), PASSES, ["ReduceMean"], epsilons=2)


def test_a_reduction_that_leaves_another_order_stays() -> None:
    g = Graph()
    y = g.op("ReduceMax", start(g, perm=[3, 2, 1, 0]), axes=[0], keepdims=0)
    assert_refused(g.model(y), PASSES)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_softmax_and_concat(axis: int) -> None:
    g = Graph()
    x = start(g)
    y = g.op("Concat", g.op("Softmax", x, axis=axis), x, axis=axis)
    assert_rewritten(g.model(back(g, y)), PASSES, ["Softmax", "Concat"], epsilons=1)


def test_softmax_over_joined_axes_stays() -> None:
    g = Graph(opset=11)
    assert_refused(g.model(back(g, g.op("Softmax", start(g), axis=2))), PASSES)


@pytest.mark.parametrize("opset", [10, 17])
def test_pad(opset: int) -> None:
    amounts = [0, 1, 2, 0, 0, 3, 0, 1]
    g = Graph(opset=opset)
    x = start(g)
    y = g.op("Pad", x, pads=amounts) if opset < 11 else g.op("Pad", x, g.ints(*amounts))
    assert_rewritten(g.model(back(g, y)), PASSES, ["Pad"], epsilons=0)


def test_a_residual_network() -> None:
    g = Graph()
    x = g.op("Relu", start(g))
    for _ in range(2):
        conv = g.op("Conv", back(g, x), g.constant(3, 3, 1, 1))
        x = g.op("Relu", g.op("Add", g.op("Transpose", conv, perm=THERE), x))
    model = g.model(g.op("ReduceMean", x, axes=[1, 2], keepdims=0))
    made = assert_rewritten(
        model, PASSES, ["Relu", "Conv", "Add", "Relu", "Conv", "Add", "Relu", "ReduceMean"]
    )
    assert "Transpose" not in kinds(made)


def test_no_gain_no_move() -> None:
    g = Graph()
    assert_refused(g.model(g.op("Relu", start(g))), PASSES, "as many")
    g = Graph()
    x = start(g)
    assert_refused(g.model(g.op("Relu", x), g.op("Neg", x)), PASSES, "as many")


def test_an_operand_that_is_not_transposed_stays() -> None:
    g = Graph()
    y = g.op("Add", start(g), g.input(3, name="b"))
    assert_refused(g.model(back(g, y)), PASSES)


def test_another_permutation_stays() -> None:
    g = Graph()
    y = g.op("Transpose", g.op("Relu", start(g)), perm=[0, 2, 1, 3])
    assert_refused(g.model(y), PASSES)
    g = Graph()
    y = g.op("Add", start(g), g.op("Transpose", g.input(2, 4, 3, 5, name="z"), perm=[0, 1, 3, 2]))
    assert_refused(g.model(back(g, y)), PASSES)


def test_outputs_keep_their_names_and_values() -> None:
    g = Graph()
    x = g.op("Relu", start(g))
    model = g.model(back(g, x), x, back(g, x))
    made = assert_rewritten(model, PASSES, ["Relu", "Transpose", "Transpose"], epsilons=0)
    assert [v.name for v in made.graph.output] == [v.name for v in model.graph.output]


def test_a_branch_that_reads_a_transposed_value() -> None:
    g = Graph()
    x = g.op("Relu", start(g))
    then = onnx.parser.parse_graph(f"then () => (float[a, b, c, d] t) {{ t = Neg({x}) }}")
    other = onnx.parser.parse_graph(f"other () => (float[a, b, c, d] e) {{ e = Abs({x}) }}")
    g.constants.append(onnx.numpy_helper.from_array(np.array(True), "flag"))
    y = g.op("If", "flag", then_branch=then, else_branch=other)
    model = g.model(y, back(g, x))
    result = Pipeline((*PASSES, MergeTransposes())).run(ir.from_proto(model), RewriteOptions())
    for got, want in zip(
        run(ir.to_proto(result.model), feeds_of(model)), run(model, feeds_of(model)), strict=True
    ):
        np.testing.assert_array_equal(got, want)
