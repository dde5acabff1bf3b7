"""Gemm where both operands are matrices and the bias fits."""

from __future__ import annotations

import numpy as np
import pytest

from ortkit.passes.fuse_matmul_add import FuseMatmulAdd
from tests.passes.graphs import Graph, assert_refused, assert_rewritten

PASSES = (FuseMatmulAdd(),)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5), (3, 1), (3, 5)])
@pytest.mark.parametrize("left", [False, True])
def test_fuses(shape: tuple[int, ...], left: bool) -> None:
    g = Graph()
    product = g.op("MatMul", g.input(3, 4), g.constant(4, 5))
    c = g.constant(*shape)
    y = g.op("Add", c, product) if left else g.op("Add", product, c)
    assert_rewritten(g.model(y), PASSES, ["Gemm"])


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_element_types(dtype: type) -> None:
    g = Graph(dtype)
    product = g.op("MatMul", g.input("n", 4), g.constant(4, 5))
    assert_rewritten(g.model(g.op("Add", product, g.constant(5))), PASSES, ["Gemm"])


def test_a_bias_that_varies() -> None:
    g = Graph()
    product = g.op("MatMul", g.input("n", 4), g.constant(4, 5))
    y = g.op("Add", product, g.input("n", 5, name="b"))
    assert_rewritten(g.model(y), PASSES, ["Gemm"])


@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 1, 5), (7, 5)])
def test_a_bias_that_widens_stays(shape: tuple[int, ...]) -> None:
    g = Graph()
    product = g.op("MatMul", g.input(1 if shape == (7, 5) else 3, 4), g.constant(4, 5))
    assert_refused(g.model(g.op("Add", product, g.constant(*shape))), PASSES, "larger")


def test_more_axes_stay() -> None:
    g = Graph()
    product = g.op("MatMul", g.input(2, 3, 4), g.constant(4, 5))
    assert_refused(g.model(g.op("Add", product, g.constant(5))), PASSES)


def test_integers_stay() -> None:
    g = Graph(np.int32)
    product = g.op("MatMul", g.input(3, 4), g.constant(4, 5))
    assert_refused(g.model(g.op("Add", product, g.constant(5))), PASSES)


def test_a_shared_product_stays() -> None:
    g = Graph()
    product = g.op("MatMul", g.input(3, 4), g.constant(4, 5))
    assert_refused(g.model(g.op("Add", product, g.constant(5)), product), PASSES)
    g = Graph()
    product = g.op("MatMul", g.input(3, 4), g.constant(4, 5))
    assert_refused(g.model(g.op("Add", product, product)), PASSES)


def test_dequantized_operands_stay() -> None:
    g = Graph(opset=19)
    q = g.op("QuantizeLinear", g.constant(4, 5), g.constant())
    product = g.op("MatMul", g.input(3, 4), g.op("DequantizeLinear", q, g.constant()))
    assert_refused(g.model(g.op("Add", product, g.constant(5))), PASSES, "dequantized")
