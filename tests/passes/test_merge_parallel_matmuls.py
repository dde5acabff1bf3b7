"""Products of one value side by side."""

from __future__ import annotations

import pytest

from ortkit.passes.merge_parallel_matmuls import MergeParallelMatmuls
from tests.passes.graphs import Graph, assert_refused, assert_rewritten

PASSES = (MergeParallelMatmuls(),)


def products(g: Graph, x: str, *widths: int, bias: bool = True) -> list[str]:
    made = [g.op("MatMul", x, g.constant(4, width)) for width in widths]
    if not bias:
        return made
    return [g.op("Add", y, g.constant(w)) for y, w in zip(made, widths, strict=True)]


@pytest.mark.parametrize("opset", [11, 17, 20])
def test_with_biases(opset: int) -> None:
    g = Graph(opset=opset)
    ends = products(g, g.input("n", 3, 4), 8, 2, 5)
    assert_rewritten(g.model(*ends), PASSES, ["MatMul", "Add", "Split"])


def test_two_with_biases() -> None:
    g = Graph()
    ends = products(g, g.input("n", 4), 8, 2)
    assert_rewritten(g.model(*ends), PASSES, ["MatMul", "Add", "Split"])


def test_three_without_biases() -> None:
    g = Graph()
    ends = products(g, g.input("n", 3, 4), 8, 2, 5, bias=False)
    assert_rewritten(g.model(*ends), PASSES, ["MatMul", "Split"])


def test_two_without_biases_stay() -> None:
    g = Graph()
    ends = products(g, g.input("n", 3, 4), 8, 2, bias=False)
    assert_refused(g.model(*ends), PASSES, "as many nodes")


@pytest.mark.parametrize("without", [0, 1, 2])
def test_one_of_three_without_bias_gets_zeros(without: int) -> None:
    g = Graph()
    x = g.input("n", 3, 4)
    ends = [*products(g, x, 8, 2)]
    ends[without:without] = products(g, x, 5, bias=False)
    assert_rewritten(g.model(*ends), PASSES, ["MatMul", "Add", "Split"])


def test_one_with_and_one_without_bias_stay() -> None:
    g = Graph()
    x = g.input("n", 3, 4)
    ends = [*products(g, x, 8), *products(g, x, 5, bias=False)]
    assert_refused(g.model(*ends), PASSES, "as many nodes")


def test_a_bias_of_one_number() -> None:
    g = Graph()
    x = g.input("n", 3, 4)
    ends = [*products(g, x, 8), g.op("Add", g.op("MatMul", x, g.constant(4, 3)), g.constant())]
    assert_rewritten(g.model(*ends), PASSES, ["MatMul", "Add", "Split"])


def test_a_bias_over_other_axes_is_no_bias() -> None:
    g = Graph()
    x = g.input(2, 3, 4)
    ends = [g.op("Add", g.op("MatMul", x, g.constant(4, 3)), g.constant(3, 1)) for _ in range(2)]
    assert_refused(g.model(*ends), PASSES)


def test_shared_and_varying_weights_stay() -> None:
    g = Graph()
    x, w = g.input(2, 3, 4), g.constant(4, 3)
    assert_refused(g.model(*(g.op("MatMul", x, w) for _ in range(3))), PASSES)
    g = Graph()
    x = g.input(2, 3, 4)
    weights = [g.input(4, 3, name=name) for name in "abc"]
    assert_refused(g.model(*(g.op("MatMul", x, w) for w in weights)), PASSES)


def test_other_values_stay_apart() -> None:
    g = Graph()
    x = g.input(2, 3, 4)
    ends = [*products(g, x, 5), *products(g, g.op("Neg", x), 5)]
    assert_refused(g.model(*ends), PASSES)
