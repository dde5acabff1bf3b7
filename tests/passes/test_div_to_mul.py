"""Division by constants: exact for powers of two, within one rounding otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from ortkit.passes.div_to_mul import DivToMul
from tests.passes.graphs import Graph, assert_refused, assert_rewritten


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("exact", [False, True])
def test_powers_of_two_are_exact(dtype: type, exact: bool) -> None:
    g = Graph(dtype)
    y = g.op("Div", g.input(3, 4), g.data([8, 0.25, -2, 1]))
    assert_rewritten(g.model(y), (DivToMul(exact=exact),), ["Mul"], epsilons=0)


def test_other_numbers_are_one_rounding_off() -> None:
    g = Graph()
    model = g.model(g.op("Div", g.input(3, 4), g.data(3)))
    assert_rewritten(model, (DivToMul(),), ["Mul"], epsilons=1)
    assert_refused(model, (DivToMul(exact=True),), "power of two")


@pytest.mark.parametrize("number", [0.0, 1e-39, 3e38, np.inf])
def test_reciprocals_that_do_not_fit_stay(number: float) -> None:
    g = Graph()
    y = g.op("Div", g.input(3), g.data(number))
    assert_refused(g.model(y), (DivToMul(),), "does not fit")


def test_a_constant_dividend_stays() -> None:
    g = Graph()
    assert_refused(g.model(g.op("Div", g.data(2), g.input(3))), (DivToMul(),))


def test_integers_stay() -> None:
    g = Graph(np.int64)
    assert_refused(g.model(g.op("Div", g.input(3), g.data(2))), (DivToMul(),))


def test_the_quotient_inside_a_gelu_stays() -> None:
    g = Graph()
    y = g.op("Erf", g.op("Div", g.input(3), g.data(2**0.5)))
    assert_refused(g.model(y), (DivToMul(),), "GELU")
