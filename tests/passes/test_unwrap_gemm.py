"""Gemm between Reshapes becomes MatMul and Add over the value's own axes."""

from __future__ import annotations

import pytest

from ortkit.passes.unwrap_gemm import UnwrapGemm
from tests.passes.graphs import Graph, assert_refused, assert_rewritten

PASSES = (UnwrapGemm(),)


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (), (5,), (1, 5)])
def test_unwraps(trans_b: int, bias: tuple[int, ...] | None) -> None:
    g = Graph()
    r = g.op("Reshape", g.input(2, "s", 4), g.ints(-1, 4))
    extra = () if bias is None else (g.constant(*bias),)
    gemm = g.op("Gemm", r, g.constant(*((5, 4) if trans_b else (4, 5))), *extra, transB=trans_b)
    y = g.op("Reshape", gemm, g.ints(2, -1, 5))
    assert_rewritten(g.model(y), PASSES, ["MatMul"] if bias is None else ["MatMul", "Add"])


def test_flattened_rows() -> None:
    g = Graph()
    r = g.op("Flatten", g.input(2, 3, 4), axis=2)
    y = g.op("Reshape", g.op("Gemm", r, g.constant(4, 5)), g.ints(2, 3, 5))
    assert_rewritten(g.model(y), PASSES, ["MatMul"])


def test_other_axes_before_take_one_reshape() -> None:
    g = Graph()
    r = g.op("Reshape", g.input(2, "s", 2, 2), g.ints(-1, 4))
    y = g.op("Reshape", g.op("Gemm", r, g.constant(4, 5), g.constant(5)), g.ints(2, -1, 5))
    assert_rewritten(g.model(y), PASSES, ["Reshape", "MatMul", "Add"])


def test_shared_rows() -> None:
    g = Graph()
    r = g.op("Reshape", g.input(2, 3, 4), g.ints(6, 4))
    ends = [g.op("Reshape", g.op("Gemm", r, g.constant(4, 5)), g.ints(2, 3, 5)) for _ in range(2)]
    assert_rewritten(g.model(*ends), PASSES, ["MatMul", "MatMul"])


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [({"alpha": 0.5}, "scales"), ({"beta": 2.0}, "scales")],
)
def test_scaled_stays(attributes: dict[str, float], reason: str) -> None:
    g = Graph()
    r = g.op("Reshape", g.input(2, 3, 4), g.ints(6, 4))
    gemm = g.op("Gemm", r, g.constant(4, 5), g.constant(5), **attributes)
    assert_refused(g.model(g.op("Reshape", gemm, g.ints(2, 3, 5))), PASSES, reason)


def test_a_bias_for_each_row_stays() -> None:
    g = Graph()
    r = g.op("Reshape", g.input(2, 3, 4), g.ints(6, 4))
    gemm = g.op("Gemm", r, g.constant(4, 5), g.constant(6, 5))
    assert_refused(g.model(g.op("Reshape", gemm, g.ints(2, 3, 5))), PASSES, "one row")


def test_columns_that_change_stay() -> None:
    g = Graph()
    r = g.op("Reshape", g.input(2, 3, 4), g.ints(6, 4))
    y = g.op("Reshape", g.op("Gemm", r, g.constant(4, 6)), g.ints(2, 9, 2))
    assert_refused(g.model(y), PASSES, "columns")


@pytest.mark.parametrize("where", ["gemm", "weight"])
def test_what_others_read_stays(where: str) -> None:
    g = Graph()
    r = g.op("Reshape", g.input(2, 3, 4), g.ints(6, 4))
    w = g.constant(5, 4)
    gemm = g.op("Gemm", r, w, transB=1)
    other = gemm if where == "gemm" else g.op("Neg", w)
    assert_refused(g.model(g.op("Reshape", gemm, g.ints(2, 3, 5)), other), PASSES)


def test_a_dequantized_weight_stays() -> None:
    g = Graph(opset=19)
    r = g.op("Reshape", g.input(2, 3, 4), g.ints(6, 4))
    q = g.op("QuantizeLinear", g.constant(4, 5), g.constant())
    w = g.op("DequantizeLinear", q, g.constant())
    y = g.op("Reshape", g.op("Gemm", r, w), g.ints(2, 3, 5))
    assert_refused(g.model(y), PASSES, "dequantized")
