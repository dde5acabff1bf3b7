"""Guards that inputs can meet on both sides are met, and the others are listed."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest
from small_models import model, random_weights

from ortkit.verify.inputs.guard_coverage import add_probes
from ortkit.verify.pair import verify_models

F = np.float32
WEIGHTS = {
    "w": random_weights(8, 8), "ones": np.ones(8, F), "axes": np.array([-1]),
    "thousand": np.array(1000, F), "four": np.array(4, F), "low": np.array(-50, F),
    "zero": np.array(0, F), "tiny": np.array(1e-6, F), "lowest": np.array(np.finfo(F).min),
    "five": np.array(5000), "two": np.array(2),
}  # fmt: skip
X = "float[n, 8] x"
BRANCH = (
    "y = If (c) < then_branch = a () => (float[n, 8] p) { p = Neg(x) },"
    " else_branch = b () => (float[n, 8] q) { q = Exp(x) } >"
)


def built(inputs: str, body: str) -> ir.Model:
    used = {name: array for name, array in WEIGHTS.items() if name in body}
    return model(f"g ({inputs}) => (float[n, 8] y) {{ {body} }}", used)


MET = {
    "the sign of a sum": (X, f"s = ReduceSum<keepdims = 0>(x) c = Greater(s, zero) {BRANCH}"),
    "a large maximum": (X, f"s = ReduceMax<keepdims = 0>(x) c = Greater(s, thousand) {BRANCH}"),
    "a sum of a row": (X, "s = ReduceSum(x, axes) c = Greater(s, thousand) y = Where(c, x, s)"),
    "a norm of nothing": (X, "s = ReduceL2(x, axes) c = Less(s, tiny) y = Where(c, x, s)"),
    "any flag": (
        f"{X}, bool[n, 8] m",
        f"i = Cast<to = 7>(m) s = ReduceMax<keepdims = 0>(i) c = Cast<to = 9>(s) {BRANCH}",
    ),
    "all flags": (
        f"{X}, bool[n, 8] m",
        f"i = Cast<to = 7>(m) s = ReduceMin<keepdims = 0>(i) c = Cast<to = 9>(s) {BRANCH}",
    ),
    "large products": (X, "m = MatMul(x, w) y = Clip(m, low, thousand)"),
    "equal inputs": (f"{X}, float[n, 8] z", "c = Equal(x, z) y = Where(c, x, z)"),
    "one of many ids": ("int64[n, 8] k", "c = Equal(k, two) f = Cast<to = 1>(c) y = MatMul(f, w)"),
    "large numbers": (
        "int64[n, 8] k", "c = GreaterOrEqual(k, five) f = Cast<to = 1>(c) y = MatMul(f, w)",
    ),
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", MET)
def test_both_sides_are_met(name: str) -> None:
    original = built(*MET[name])
    found = verify_models(original, original)
    guards = found.values.guards
    assert guards is not None
    assert guards.guards
    assert not guards.missed
    assert f"conditions: {guards.guards} of {guards.guards} seen true and false" in found.reason


def test_a_branch_that_usual_inputs_do_not_reach_is_compared() -> None:
    inputs, body = MET["a large maximum"]
    original, wrong = built(inputs, body), built(inputs, body.replace("Neg", "Abs"))
    assert verify_models(original, wrong).verdict == "no"


def test_what_is_not_met_is_listed() -> None:
    """Rows that are normalized stay below 3."""
    body = "m = LayerNormalization(x, ones) y = Clip(m, zero, thousand)"
    original = built(X, body)
    found = verify_models(original, original)
    assert "conditions: 1 of 2 seen true and false" in found.reason
    guards = json.loads(json.dumps(found.to_json()))["guards"]
    missed = {"node": "Clip 'y'", "test": "above 1000", "met": "false"}
    assert guards == {"guards": 2, "missed": [missed], "in_bodies": 0}


def test_guards_in_bodies_are_counted_apart() -> None:
    body = BRANCH.replace("p = Neg(x)", "p = Clip(x, zero, four)")
    original = built(f"{X}, bool c", body)
    found = verify_models(original, original)
    assert "conditions: 1 of 1 seen true and false, 1 in bodies not measured" in found.reason


@pytest.mark.parametrize(
    "body",
    [
        "y = MatMul(x, w)",
        "y = Clip(x, lowest)",
        "s = Shape(x) c = Greater(s, two) d = Slice(c, zero_, one_) f = Cast<to = 1>(d)"
        " y = Add(x, f)",
    ],
)
def test_what_no_value_decides_is_no_guard(body: str) -> None:
    bounds = {"zero_": np.array([0]), "one_": np.array([1])} if "zero_" in body else {}
    used = {name: array for name, array in WEIGHTS.items() if f" {name})" in body}
    original = model(f"g ({X}) => (float[n, 8] y) {{ {body} }}", {**used, **bounds})
    found = verify_models(original, original)
    assert found.verdict == "yes"
    assert "guards" not in found.reason


def test_a_condition_that_many_read_is_one_guard() -> None:
    body = "c = Greater(x, zero) n = Not(c) a = Where(c, x, w0) y = Where(n, a, x)"
    original = model(f"g ({X}) => (float[n, 8] y) {{ {body} }}",
                     {"zero": WEIGHTS["zero"], "w0": np.array(0.5, F)})  # fmt: skip
    found = verify_models(original, original).values.guards
    assert found is not None
    assert found.guards == 1


def test_a_batch_that_is_cut_keeps_its_guards() -> None:
    text = "g (float[32, 8] x) => (float[32, 8] y) { c = Greater(x, zero) y = Where(c, x, zero) }"
    original = model(text, {"zero": WEIGHTS["zero"]})
    found = verify_models(original, original)
    assert found.batch.startswith("32 rows as 3")
    assert "conditions: 1 of 1 seen true and false" in found.reason


def test_what_only_nan_in_between_meets_is_not_run_for() -> None:
    body = (
        "p = MatMul(x, w) n = IsNaN(p) z = Where(n, zero, p) m = IsNaN(x) h = Where(m, ones, z)"
        " c = Greater(h, four) y = Where(c, h, p)"
    )
    nodes = [guard.node for guard in add_probes(built(X, body), reachable_only=True)]
    assert nodes == ["Where 'h'", "Greater 'c'"]
    assert len(add_probes(built(X, body))) == 3
