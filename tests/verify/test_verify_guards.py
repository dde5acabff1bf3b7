"""Numbers that inputs are compared with lie on both sides in what is made up."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import model

from ortkit.verify.inputs.feeds import FeedMaker
from ortkit.verify.inputs.guards import guards_of, is_elementwise
from ortkit.verify.pair import verify_models

F = np.float32


@pytest.mark.parametrize(
    ("body", "guards"),
    [
        ("y = Greater(x, c)", {1000.0}),
        ("y = Clip(x, d, c)", {4.0, 1000.0}),
        ("a = Mul(x, d) y = Less(a, c)", {250.0}),
        ("a = Sub(d, x) y = Less(a, c)", {-996.0}),
        ("a = Neg(x) b = Identity(a) y = Max(b, c)", {-1000.0}),
        ("a = Div(d, x) y = Less(a, c)", {0.004}),
        ("a = Sqrt(x) y = Less(a, d)", {16.0}),
        ("a = Sub(x, c) y = Relu(a)", {1000.0}),
        ("a = Reshape(x, s) y = Greater(a, c)", {1000.0}),
        ("y = HardSwish(x)", {-3.0, 3.0}),
        ("a = Gather(x, s) y = Greater(a, c)", {1000.0}),
        ("a = MatMul(x, x) y = Greater(a, c)", set()),
    ],
)
def test_guards_are_read_off_the_graph(body: str, guards: set[float]) -> None:
    weights = {"c": np.array(1000, F), "d": np.array(4, F), "s": np.array([-1])}
    built = model(f"g (float[4, 4] x) => (float[] y) {{ {body} }}", weights)
    found = guards_of(built.graph.inputs[0], built)
    assert {round(number, 6) for number in found} == guards


def test_guards_are_read_behind_thousands_of_operators() -> None:
    """Longer than the interpreter's calls may be nested."""
    steps = " ".join(f"v{i + 1} = Neg(v{i})" for i in range(1500))
    text = f"g (float[4] v0) => (bool[4] y) {{ {steps} y = Greater(v1500, c) }}"
    built = model(text, {"c": np.array(7, F)})
    assert guards_of(built.graph.inputs[0], built) == (7.0,)


@pytest.mark.parametrize("threshold", [6.0, 1000.0, -1e6])
def test_both_sides_of_a_guard_are_met(threshold: float) -> None:
    text = "g (float[n, 8] x) => (float[n, 8] y) {{ c = {test} y = Where(c, {both}) }}"
    weights = {"t": np.array(threshold, F)}
    original = model(text.format(test="Greater(x, t)", both="x, t"), weights)
    for body in ("x, x", "t, t"):
        wrong = model(text.format(test="Greater(x, t)", both=body), weights)
        assert verify_models(original, wrong).verdict == "no"


def test_a_single_number_is_on_either_side_in_turn() -> None:
    text = """g (float x, float[4] z) => (float[4] y) {
        c = Greater(x, t)
        y = If (c) < then_branch = a () => (float[4] p) { p = Neg(z) },
                     else_branch = b () => (float[4] q) { q = Exp(z) } >
    }"""
    maker = FeedMaker.of(model(text, {"t": np.array(77, F)}), {})
    numbers = [float(np.asarray(maker.make(plan)["x"])) for plan in maker.covering("quick", 0)]
    assert min(numbers) < 77 < max(numbers)


def test_integers_meet_guards_within_their_type() -> None:
    built = model("g (int64[n] x) => (bool[n] y) { y = Equal(x, t) }", {"t": np.array(5000)})
    maker = FeedMaker.of(built, {})
    values = {int(x) for p in maker.covering("quick", 0) for x in np.asarray(maker.make(p)["x"])}
    assert {4999, 5000, 5001} <= values


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("a = Exp(x) y = Where(c, a, x)", True),
        ("y = Softmax(x)", False),
        ("y = Cast <to = 7> (x)", False),
        ("a = Reshape(x, s) y = Cast <to = 10> (a)", True),
        ("a = Tan(x) y = Mean(a, x)", True),
        ("y = CastLike(x, i)", False),
    ],
)
def test_elementwise_models_are_told_from_others(body: str, answer: bool) -> None:
    built = model(f"g (float[n, 8] x, bool[n, 8] c, int32[n] i) => (float[] y) {{ {body} }}")
    assert is_elementwise(built) is answer
