"""Transposes between Reshapes move whole axes of the value before them."""

from __future__ import annotations

import pytest

from ortkit.passes.merge_reshapes import MergeReshapes
from ortkit.passes.simplify_transpose import SimplifyTranspose
from tests.passes.graphs import Graph, assert_refused, assert_rewritten

PASSES = (SimplifyTranspose(),)


@pytest.mark.parametrize(
    ("shape", "first", "perm", "last", "expected"),
    [
        ((2, 3, 5, 4), (6, 5, 4), (0, 2, 1), (2, 3, 4, 5), ["Transpose"]),
        ((2, 3, 5, 4), (2, 15, 4), (2, 0, 1), (4, 2, 3, 5), ["Transpose"]),
        ((1, 4, "s", 8), (4, -1, 8), (0, 2, 1), (1, 4, 8, -1), ["Transpose"]),
        ((1, 2, 2, "s", 8), (4, -1, 8), (0, 2, 1), (1, 4, 8, -1), ["Reshape", "Transpose"]),
        ((4, 1, 8), (4, 8), (1, 0), (8, 4, 1), ["Transpose"]),
        ((4, 8, 1), (4, 8), (1, 0), (8, 4), ["Reshape", "Transpose"]),
        ((2, 3, 4), (6, 4), None, (4, 2, 3), ["Transpose"]),
    ],
)
def test_axes_move_whole(shape, first, perm, last, expected) -> None:
    g = Graph()
    t = g.op("Reshape", g.input(*shape), g.ints(*first))
    u = g.op("Transpose", t, **({} if perm is None else {"perm": perm}))
    assert_rewritten(g.model(g.op("Reshape", u, g.ints(*last))), PASSES, expected, epsilons=0)


@pytest.mark.parametrize(
    ("shape", "first", "perm", "last"),
    [
        ((6, 4), (2, 3, 4), (1, 0, 2), (6, 4)),
        ((4, 6), (6, 4), (1, 0), (2, 12)),
        (("a", "b", 4), (-1, 4), (1, 0), (2, -1)),
    ],
)
def test_axes_that_part_stay(shape, first, perm, last) -> None:
    g = Graph()
    t = g.op("Reshape", g.input(*shape), g.ints(*first))
    u = g.op("Transpose", t, perm=perm)
    y = g.op("Reshape", u, g.ints(*last))
    if shape[0] == "a":
        assert_rewritten(g.model(y), PASSES, ["Transpose", "Reshape"], epsilons=0)
    else:
        reason = "as many nodes" if shape[0] == 6 else "do not follow from factors"
        assert_refused(g.model(y), PASSES, reason)


def test_steps_that_others_read_stay() -> None:
    g = Graph()
    t = g.op("Reshape", g.input(2, 3, 4), g.ints(6, 4))
    u = g.op("Transpose", t, perm=[1, 0])
    y = g.op("Reshape", u, g.ints(4, 2, 3))
    assert_refused(g.model(y, u), PASSES, "as many nodes")
    assert_rewritten(g.model(y, t), PASSES, ["Reshape", "Transpose"], epsilons=0)


@pytest.mark.parametrize(
    ("shape", "first", "perm", "expected"),
    [
        ((2, 5, 8), (2, 5, 1, 8), (0, 2, 1, 3), ["Reshape", "Relu"]),
        (("n", 5, 8), (0, 5, 1, 8), (0, 2, 1, 3), ["Reshape", "Relu"]),
        (("n", "s", 8), (0, 0, 1, 8), (0, 2, 1, 3), ["Unsqueeze", "Relu"]),
        ((1, 8), (8, 1), None, ["Relu"]),
    ],
)
def test_moving_axes_of_length_one_is_a_reshape(shape, first, perm, expected) -> None:
    passes = (SimplifyTranspose(), MergeReshapes())
    g = Graph()
    t = g.op("Reshape", g.input(*shape), g.ints(*first))
    u = g.op("Transpose", t, **({} if perm is None else {"perm": perm}))
    assert_rewritten(g.model(g.op("Relu", u)), passes, expected, epsilons=0)
    g = Graph()
    u = g.op("Transpose", g.input("n", 1, 5, 8), perm=[0, 2, 3, 1])
    end = g.op("Reshape", u, g.ints(0, -1))
    assert_rewritten(g.model(end), passes, ["Reshape"], epsilons=0)


def test_moving_axes_of_length_one_away_from_reshapes_stays() -> None:
    g = Graph()
    u = g.op("Transpose", g.op("Relu", g.input("n", 1, 5)), perm=[1, 0, 2])
    assert_refused(g.model(g.op("Neg", u)), PASSES)
    g = Graph()
    t = g.op("Reshape", g.input("n", "s", "t"), g.op("Shape", g.input(1, "s", "t", name="y")))
    assert_refused(g.model(g.op("Neg", g.op("Transpose", t, perm=[0, 2, 1]))), PASSES)
