"""Two products with constant matrices become one where that is less work."""

from __future__ import annotations

import numpy as np
import pytest

from ortkit.passes.fold_affine_into_matmul import FoldAffineIntoMatmul
from ortkit.passes.merge_linear import MergeLinear
from tests.passes.graphs import Graph, assert_refused, assert_rewritten

PASSES = (MergeLinear(),)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matmuls(dtype: type) -> None:
    g = Graph(dtype)
    y = g.op("MatMul", g.input(2, "n", 4), g.constant(4, 8))
    y = g.op("MatMul", g.op("MatMul", y, g.constant(8, 6)), g.constant(6, 5))
    assert_rewritten(g.model(y), PASSES, ["MatMul"])


@pytest.mark.parametrize("trans", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("biases", [(False, False), (True, False), (False, True), (True, True)])
def test_gemms(trans: tuple[int, int], biases: tuple[bool, bool]) -> None:
    g = Graph()
    y = g.input(3, 4)
    for rows, columns, transposed, bias in zip((4, 8), (8, 5), trans, biases, strict=True):
        weight = g.constant(columns, rows) if transposed else g.constant(rows, columns)
        y = g.op("Gemm", y, weight, *((g.constant(columns),) if bias else ()), transB=transposed)
    assert_rewritten(g.model(y), PASSES, ["Gemm"])


def test_what_stands_between_goes_first() -> None:
    g = Graph()
    y = g.op("Add", g.op("MatMul", g.input(2, 3, 4), g.constant(4, 8)), g.constant(8))
    y = g.op("Add", g.op("MatMul", y, g.constant(8, 5)), g.constant(5))
    assert_rewritten(g.model(y), (FoldAffineIntoMatmul(), *PASSES), ["MatMul", "Add"])


def test_a_narrow_middle_stays() -> None:
    g = Graph()
    y = g.op("MatMul", g.op("MatMul", g.input(3, 16), g.constant(16, 2)), g.constant(2, 16))
    assert_refused(g.model(y), PASSES, "more work")


def test_what_others_read_stays() -> None:
    g = Graph()
    t = g.op("MatMul", g.input(3, 4), g.constant(4, 8))
    assert_refused(g.model(g.op("MatMul", t, g.constant(8, 5)), t), PASSES)
    g = Graph()
    w = g.constant(4, 4)
    y = g.op("MatMul", g.op("MatMul", g.input(3, 4), w), w)
    assert_refused(g.model(y), PASSES)


@pytest.mark.parametrize("attributes", [{"alpha": 2.0}, {"beta": 2.0}, {"transA": 1}])
def test_scaled_ones_stay(attributes: dict[str, float]) -> None:
    g = Graph()
    y = g.op("Gemm", g.input(4, 4), g.constant(4, 8), g.constant(8), **attributes)
    assert_refused(g.model(g.op("Gemm", y, g.constant(8, 5))), PASSES)


def test_weights_that_vary_stay() -> None:
    g = Graph()
    y = g.op("MatMul", g.op("MatMul", g.input(3, 4), g.input(4, 8, name="v")), g.constant(8, 5))
    assert_refused(g.model(y), PASSES)


def test_a_bias_for_each_row_stays() -> None:
    g = Graph()
    y = g.op("Gemm", g.input(3, 4), g.constant(4, 8), g.constant(3, 8))
    assert_refused(g.model(g.op("Gemm", y, g.constant(8, 5))), PASSES, "one row")
