"""Constants stand on the right, single numbers have rank 0, and no bit changes."""

from __future__ import annotations

import numpy as np
import pytest

from ortkit.passes.normalize_operands import NormalizeOperands
from tests.passes.graphs import Graph, assert_refused, assert_rewritten, kinds, rewritten

PASSES = (NormalizeOperands(),)


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_the_constant_goes_right(op: str) -> None:
    g = Graph()
    made = assert_rewritten(
        g.model(g.op(op, g.constant(4), g.input(3, 4))), PASSES, [op], epsilons=0
    )
    assert list(made.graph.node[0].input) == ["x", "c0"]


@pytest.mark.parametrize("op", ["Sub", "Div", "Pow"])
def test_the_order_of_others_stays(op: str) -> None:
    g = Graph()
    assert_refused(g.model(g.op(op, g.constant(4), g.input(3, 4))), PASSES)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)])
@pytest.mark.parametrize("op", ["Mul", "Sub", "Pow"])
def test_one_number_gets_rank_zero(op: str, shape: tuple[int, ...]) -> None:
    g = Graph()
    y = g.op(op, g.input(2, "n", 4), g.constant(*shape))
    made = assert_rewritten(g.model(y), PASSES, [op], epsilons=0)
    constants = {t.name: tuple(t.dims) for t in made.graph.initializer}
    assert constants[made.graph.node[0].input[1]] == ()


@pytest.mark.parametrize("shape", [(4,), ()])
def test_a_constant_that_adds_axes_stays(shape: tuple[int, ...]) -> None:
    g = Graph()
    assert_refused(g.model(g.op("Mul", g.input(*shape), g.constant(1, 1))), PASSES, "add axes")


def test_two_rewrites_at_one_node() -> None:
    g = Graph()
    made = assert_rewritten(
        g.model(g.op("Mul", g.constant(1), g.input(3, 4))), PASSES, ["Mul"], epsilons=0
    )
    assert made.graph.node[0].input[0] == "x"


def test_dequantized_operands_stay() -> None:
    g = Graph(opset=19)
    q = g.op("QuantizeLinear", g.constant(4), g.constant())
    d = g.op("DequantizeLinear", q, g.constant())
    assert_refused(g.model(g.op("Add", d, g.input(3, 4))), PASSES)


def test_integers() -> None:
    g = Graph(np.int64)
    model = g.model(g.op("Equal", g.data([1]), g.input(3)))
    model.graph.output[0].type.tensor_type.elem_type = 9
    made, result = rewritten(model, PASSES)
    assert kinds(made) == ["Equal"]
    assert len(result.log.hits) == 2


@pytest.mark.parametrize("op", ["Sub", "Div", "Pow"])
def test_one_number_on_the_left_of_what_does_not_commute_gets_rank_zero(op: str) -> None:
    g = Graph()
    y = g.op(op, g.constant(1, 1), g.input(2, 3))
    made = assert_rewritten(g.model(y), PASSES, [op], epsilons=0)
    (node,) = made.graph.node
    constants = {t.name: tuple(t.dims) for t in made.graph.initializer}
    assert constants[node.input[0]] == ()
    assert node.input[1] == "x"


@pytest.mark.parametrize(("opset", "is_taken"), [(6, False), (7, True)])
def test_operands_broadcast_by_an_attribute_stay(opset: int, is_taken: bool) -> None:
    g = Graph(opset=opset)
    attributes = {"broadcast": 1} if opset == 6 else {}
    model = g.model(g.op("Mul", g.input(2, 3), g.constant(1, 1), **attributes))
    _, result = rewritten(model, PASSES)
    assert result.modified == is_taken


def test_a_vector_keeps_its_rank() -> None:
    g = Graph()
    assert_refused(g.model(g.op("Mul", g.input(4, 2), g.constant(2))), PASSES)
