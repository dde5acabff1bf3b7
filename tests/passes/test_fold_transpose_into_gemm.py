"""Gemm takes over the Transpose of a matrix."""

from __future__ import annotations

import pytest

from ortkit.passes.fold_transpose_into_gemm import FoldTransposeIntoGemm
from tests.passes.graphs import Graph, assert_refused, assert_rewritten

PASSES = (FoldTransposeIntoGemm(),)


@pytest.mark.parametrize("perm", [None, [1, 0]])
@pytest.mark.parametrize("trans_a", [0, 1])
def test_left(perm: list[int] | None, trans_a: int) -> None:
    g = Graph()
    x = g.input(*((3, 4) if trans_a else (4, 3)))
    t = g.op("Transpose", x, **({} if perm is None else {"perm": perm}))
    y = g.op("Gemm", t, g.constant(4, 5), g.constant(5), transA=trans_a)
    made = assert_rewritten(g.model(y), PASSES, ["Gemm"])
    assert made.graph.node[0].input[0] == "x"


@pytest.mark.parametrize("op", ["Gemm", "MatMul"])
def test_both(op: str) -> None:
    g = Graph()
    a, b = g.input("k", 3), g.input(5, "k", name="b")
    y = g.op(op, g.op("Transpose", a), g.op("Transpose", b))
    assert_rewritten(g.model(y), PASSES, ["Gemm"])


def test_a_transpose_that_does_nothing_stays() -> None:
    g = Graph()
    y = g.op("Gemm", g.op("Transpose", g.input(3, 4), perm=[0, 1]), g.constant(4, 5))
    assert_refused(g.model(y), PASSES)


def test_more_axes_stay() -> None:
    g = Graph()
    y = g.op("MatMul", g.op("Transpose", g.input(2, 4, 3), perm=[0, 2, 1]), g.constant(4, 5))
    assert_refused(g.model(y), PASSES)
    g = Graph()
    y = g.op("MatMul", g.op("Transpose", g.input(4, 3)), g.input(2, 4, 5, name="b"))
    assert_refused(g.model(y), PASSES)


def test_what_others_read_stays() -> None:
    g = Graph()
    t = g.op("Transpose", g.input(4, 3))
    assert_refused(g.model(g.op("Gemm", t, g.constant(4, 5)), t), PASSES, "others read")


def test_constants_and_dequantized_values_stay() -> None:
    g = Graph()
    y = g.op("Gemm", g.input(3, 4), g.op("Transpose", g.constant(5, 4)))
    assert_refused(g.model(y), PASSES)
    g = Graph(opset=19)
    q = g.op("QuantizeLinear", g.constant(5, 4), g.constant())
    w = g.op("Transpose", g.op("DequantizeLinear", q, g.constant()))
    assert_refused(g.model(g.op("MatMul", g.input(3, 4), w)), PASSES, "dequantized")
