"""Recurrent layers without the zeros they start from."""

from __future__ import annotations

import numpy as np
import pytest

from ortkit.passes.drop_zero_state import DropZeroState
from tests.passes.graphs import Graph, assert_refused, kinds, rewritten, run

PASSES = (DropZeroState(),)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(g: Graph, op: str, *states: str) -> str:
    size = GATES[op] * 3
    weights = [g.constant(1, size, 2), g.constant(1, size, 3), g.constant(1, 2 * size)]
    return g.op(op, g.input(5, "batch", 2), *weights, "", *states, hidden_size=3)


def zeros(g: Graph, kind: str) -> str:
    if kind == "constant":
        return g.data([[[0.0] * 3] * 2])
    if kind == "expand":
        return g.op("Expand", g.data(0.0), g.ints(1, 2, 3))
    shape = g.op("ConstantOfShape", g.ints(4, 2, 3))
    return g.op("Slice", shape, g.ints(1), g.ints(2), g.ints(0))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("kind", ["constant", "expand", "filled"])
def test_zeros_go(op: str, kind: str) -> None:
    g = Graph()
    states = [zeros(g, kind)] * (2 if op == "LSTM" else 1)
    model = g.model(layer(g, op, *states))
    made, _ = rewritten(model, PASSES)
    assert kinds(made) == [op]
    feeds = {"x": np.ones((5, 2, 2), np.float32)}
    np.testing.assert_array_equal(run(made, feeds)[0], run(model, feeds)[0])


def test_one_state_of_two() -> None:
    g = Graph()
    model = g.model(layer(g, "LSTM", g.data([[[1.0] * 3] * 2]), zeros(g, "constant")))
    made, _ = rewritten(model, PASSES)
    assert list(made.graph.node[0].input[5:]) == ["c0", ""]


def test_other_states_stay() -> None:
    g = Graph()
    assert_refused(g.model(layer(g, "GRU", g.input(1, "batch", 3, name="h"))), PASSES)
    g = Graph()
    assert_refused(g.model(layer(g, "GRU", g.data([[[0.0, 0.0, 1e-9]] * 2]))), PASSES)
