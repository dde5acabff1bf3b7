"""Expand before ops that broadcast."""

from __future__ import annotations

import pytest

from ortkit.passes.drop_expand import DropExpand
from tests.passes.graphs import Graph, assert_refused, assert_rewritten

PASSES = (DropExpand(),)


def expand(g: Graph, value: str, like: str) -> str:
    return g.op("Expand", value, g.op("Shape", like))


@pytest.mark.parametrize("op", ["Div", "Max", "Mul"])
@pytest.mark.parametrize("shape", [("n", 1), (1, 1), (1,), ()])
def test_broadcast_by_its_reader(op: str, shape: tuple[int | str, ...]) -> None:
    g = Graph()
    x, y = g.input("n", 6), g.input(*shape, name="y")
    assert_rewritten(g.model(g.op(op, x, expand(g, y, x))), PASSES, [op])


def test_where() -> None:
    g = Graph()
    x, y = g.input("n", 6), g.input("n", 1, name="y")
    end = g.op("Where", g.op("Less", x, g.data(0)), expand(g, y, x), x)
    assert_rewritten(g.model(end), PASSES, ["Less", "Where"])


def test_two_readers() -> None:
    g = Graph()
    x, y = g.input("n", 6), g.input(6, name="y")
    e = expand(g, y, x)
    assert_rewritten(g.model(g.op("Mul", x, e), g.op("Sub", e, x)), PASSES, ["Mul", "Sub"])


def test_two_sizes_from_two_operands_stay_apart() -> None:
    g = Graph()
    x, y, z = g.input("n", 1), g.input(1, 6, name="y"), g.input(1, 1, name="z")
    e = g.op("Expand", z, g.op("Shape", g.op("Add", x, y)))
    assert_rewritten(g.model(g.op("Sum", x, e, y)), PASSES, ["Sum"])
    g = Graph()
    x, y, z = g.input("n", 1), g.input(1, 6, name="y"), g.input(1, 1, name="z")
    e = g.op("Expand", z, g.op("Shape", g.op("Add", x, y)))
    assert_refused(g.model(g.op("Add", x, e)), PASSES, "does not broadcast")


@pytest.mark.parametrize("reader", ["Relu", "PRelu", ""])
def test_readers_that_do_not_broadcast(reader: str) -> None:
    g = Graph()
    x, y = g.input("n", 6), g.input("n", 1, name="y")
    e = expand(g, y, x)
    others = {"Relu": [g.op("Relu", e)], "PRelu": [g.op("PRelu", e, x)], "": [e]}[reader]
    assert_refused(g.model(g.op("Mul", x, e), *others), PASSES)


def test_added_axes_that_nothing_else_has() -> None:
    g = Graph()
    x, y = g.input(6), g.input(6, name="y")
    assert_refused(g.model(g.op("Add", x, g.op("Expand", y, g.ints(1, 6)))), PASSES)


def test_both_operands_are_the_expanded_value() -> None:
    g = Graph()
    x, y = g.input("n", 6), g.input("n", 1, name="y")
    e = expand(g, y, x)
    assert_refused(g.model(g.op("Mul", e, e)), PASSES, "does not broadcast")


def test_sizes_that_may_differ() -> None:
    g = Graph()
    x, y = g.input("n", 6), g.input("m", 6, name="y")
    assert_refused(g.model(g.op("Mul", x, expand(g, y, x))), PASSES)
