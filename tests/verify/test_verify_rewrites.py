"""Rewrites are judged where they are, in float32, at every value that both graphs name."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from small_models import model, random_weights

import ortkit
from models.catalog import build
from ortkit.verify import conditioned
from ortkit.verify import rewrites as stage
from ortkit.verify.pair import verify_models
from ortkit.verify.perturbed import steps
from ortkit.verify.perturbed.perturbation import RUNS, Epsilon
from ortkit.verify.verifier import Verifier
from ortkit.verify.widening import widened

HIDDEN = """g ({kind}[n, 16] x) => ({kind}[n, 16] y) {{
  m = MatMul(x, w) b = Add(m, bias) c = Mul(b, large) t = Tanh(c) y = MatMul(t, w)
}}"""


def hidden(kind: str = "float", **changed: np.ndarray) -> ir.Model:
    """A product whose consumer saturates: what is a little off before it is lost."""
    dtype = np.float16 if kind == "float16" else np.float32
    weights = {
        "w": random_weights(16, 16), "bias": random_weights(16, seed=2) + 0.5,
        "large": np.array(200.0),
    }  # fmt: skip
    given = {name: np.asarray(array, dtype) for name, array in {**weights, **changed}.items()}
    return model(HIDDEN.format(kind=kind), given)


@pytest.mark.parametrize(("kind", "part"), [("float", 1e-4), ("float", -0.01), ("float16", 0.01)])
def test_a_fault_before_a_saturating_operator_is_found_where_it_is(kind: str, part: float) -> None:
    bias = (random_weights(16, seed=2) + 0.5) * np.float32(1 + part)
    with Verifier(hidden(kind)) as verifier:
        assert verifier.check(hidden(kind)).verdict == "yes"
        found = verifier.check(hidden(kind, bias=bias))
    assert found.verdict == "no"
    assert found.reason.startswith("value 'b', computed from the original's values in float32: ")
    assert [each.name for each in found.values.wrong] == ["b"]
    assert found.outputs == ()


def test_a_default_that_nothing_reads_keeps_nothing_from_being_compared() -> None:
    built = hidden()
    default = ir.Value(
        name="unread", shape=ir.Shape([16]), type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.tensor(np.ones(16, np.float32), name="unread"),
    )  # fmt: skip
    built.graph.inputs.append(default)
    built.graph.register_initializer(default)
    with Verifier(built) as verifier:
        found = verifier.check(built.clone())
    assert found.verdict == "yes"
    assert not found.not_compared


@pytest.mark.parametrize("close", [0.0, 1e6])
def test_what_few_runs_do_not_allow_is_compared_with_more(
    close: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if there were next to no floor, and the first runs showed nothing."""
    perturb, calls = steps.perturb, list[int]()

    def perturb_later(
        model: ir.Model, epsilon: Epsilon, *, first: int, with_weights: bool
    ) -> None:
        calls.append(first)
        if first:
            perturb(model, epsilon, first=first, with_weights=with_weights)

    text = "g (float[n, 16] x) => (float[n, 16] y) {{ {} }}"
    original, candidate = (
        model(text.format(body), {"w": random_weights(16)})
        for body in (
            "square = Mul(x, x) sum = Add(square, x) y = Mul(sum, w)",
            "part = Mul(x, w) rest = Mul(x, part) y = Add(rest, part)",
        )
    )
    monkeypatch.setattr(steps, "LIMITS", replace(steps.LIMITS, floor_eps={"float32": 1e-3}))
    monkeypatch.setattr(steps, "perturb", perturb_later)
    monkeypatch.setattr(conditioned, "_CLOSE", close)
    assert verify_models(original, candidate).verdict == ("yes" if close else "no")
    assert set(calls) == ({0, RUNS} if close else {0})


ROUNDED = """g (float16[n, 64] x) => (float16[n, 64] y) {
  m = MatMul(x, w) t = Tanh(m) y = MatMul(t, v)
}"""


@pytest.mark.parametrize(("part", "verdict"), [(0.0, "good"), (1.5, "no"), (-1.5, "no")])
def test_constants_are_off_by_roundings_and_not_all_alike(part: float, verdict: str) -> None:
    """Epsilons by which all weights of one matrix are off; rounding moves each by a half."""
    drawn = np.random.default_rng(5).uniform(-0.5, 0.5, (64, 64)) + part
    w, v = random_weights(64, 64), random_weights(64, 64, seed=1)
    other = (w * (1 + drawn * 2.0**-10)).astype(np.float16)
    original = model(ROUNDED, {"w": w.astype(np.float16), "v": v.astype(np.float16)})
    text = ROUNDED.replace("m = MatMul(x, w)", "c = Transpose(w) m = MatMul(x, c)")
    candidate = model(text, {"w": other.T.copy(), "v": v.astype(np.float16)})
    found = verify_models(original, candidate)
    assert found.is_good == (verdict == "good"), found.reason
    if verdict == "no":
        assert "times what rounding its constants may cost" in found.reason


NORM = """g (float16[n, 32] x) => (float16[n, 32] y) {
  s = Mul(x, x) m = ReduceMean<axes = [-1]>(s) e = Add(m, epsilon) r = Sqrt(e) d = Div(x, r)
  y = Mul(d, scale)
}"""


def test_a_wide_copy_leaves_the_model_as_it_is() -> None:
    text = "g (seq(float16[4]) s, float16[n] x) => (float16[n] y) { y = Add(x, c) }"
    original = model(text, {"c": np.ones(1, np.float16)})
    before = ir.to_proto(original).SerializeToString()
    wide = widened(original)
    assert {value.dtype for value in wide.graph.inputs} == {ir.DataType.FLOAT}
    assert ir.to_proto(original).SerializeToString() == before


def test_half_precision_gets_no_tolerance_of_its_own() -> None:
    """One part in a thousand is a rounding of float16, and no rounding of a rewrite."""
    text = NORM.replace("ReduceMean<axes = [-1]>(s)", "ReduceMean(s, axes)")

    def norm(epsilon: float, scale: float = 1.0) -> ir.Model:
        weights = {
            "epsilon": np.array(epsilon, np.float16), "axes": np.array([-1]),
            "scale": np.full(32, scale, np.float16),
        }  # fmt: skip
        return model(text, weights)

    with Verifier(norm(1e-5)) as verifier:
        assert verifier.check(norm(1e-5)).verdict == "yes"
        assert verifier.check(norm(1e-3)).verdict == "no"
        assert verifier.check(norm(1e-5, scale=1 - 2**-9)).verdict == "no"


def test_constants_that_a_lowering_rounds_are_off_by_that_and_no_more() -> None:
    wrong = random_weights(16, 16)
    wrong[:, 3] *= np.float32(1.01)
    options = ortkit.OptimizeOptions(
        target="cuda", precision="fp16", kernels="off", verify=False, check_load=False
    )

    def lowered(given: ir.Model) -> ir.Model:
        return ortkit.optimize(given, options).model

    original = model("g (float[n, 16] x) => (float[n, 16] y) { m = MatMul(x, w) y = Relu(m) }",
                     {"w": random_weights(16, 16)})  # fmt: skip
    faulty = model("g (float[n, 16] x) => (float[n, 16] y) { m = MatMul(x, w) y = Relu(m) }",
                   {"w": wrong})  # fmt: skip
    with Verifier(original) as verifier:
        assert verifier.check(lowered(original), computed_in="float16").verdict == "yes"
        assert verifier.check(lowered(faulty), computed_in="float16").verdict == "no"


def test_a_name_that_another_tool_gave_to_another_value_is_no_fault() -> None:
    text = "g (float[n, 8] x) => (float[n, 8] y) { a = Neg(x) b = Relu(a) c = Abs(b) y = Exp(c) }"
    # A tool that folds Relu away keeps the name of what was before it.
    other = "g (float[n, 8] x) => (float[n, 8] y) { z = Neg(x) a = Relu(z) c = Abs(a) y = Exp(c) }"
    wrong = "g (float[n, 8] x) => (float[n, 8] y) { z = Abs(x) a = Relu(z) c = Abs(a) y = Exp(c) }"
    with Verifier(model(text)) as verifier:
        found = verifier.check(model(other))
        assert found.verdict == "yes", found.reason
        assert "a" not in found.values.compared
        assert verifier.check(model(wrong)).verdict == "no"


def test_a_name_that_stands_for_values_of_other_sizes_is_no_name_of_both() -> None:
    """As where functions are inlined, whose values each model numbers anew."""
    text = """g (float[n, 8] x) => (float[n, 4] y) {{
      {0} = Mul(x, v) {1} = MatMul({0}, w) t = Mul({1}, u) y = Exp(t)
    }}"""
    weights = {"v": random_weights(8), "w": random_weights(8, 4), "u": random_weights(4)}
    original, renamed = (model(text.format(*names), weights) for names in ("ab", "ba"))
    found = verify_models(original, renamed)
    assert found.verdict == "yes", found.reason
    assert found.values.compared == ("t", "y")


def test_values_that_a_subgraph_reads_are_given_to_it() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
      a = OPERATOR(x)
      b = If (c) <
        then_branch = t () => (float[4] p) { p = Exp(a) },
        else_branch = e () => (float[4] a2) { a2 = Identity(a) }
      >
      y = Relu(b)
    }"""
    original, wrong = (model(text.replace("OPERATOR", op)) for op in ("Abs", "Neg"))
    with Verifier(original) as verifier:
        assert verifier.check(original).values.compared == ("a", "b", "y")
        found = verifier.check(wrong)
    assert [each.name for each in found.values.wrong] == ["a"]


def test_what_a_loop_without_trips_stacks_has_its_rank() -> None:
    """ONNX Runtime gives it the rank that it infers, or 1 where it knows none."""
    text = """g (float[a, b] x, int64 n) => (float[t, p, q] y, float[a, b] z) {
      h = Exp(x)
      r, s = Loop (n, , h) <body = b (int64 i, bool c, float[u, v] p) => (bool d, o, q) {
        d = Identity(c) o = Tanh(p) q = Mul(o, h) }>
      y = Neg(s) z = Neg(r)
    }"""
    original = model(text)
    found = verify_models(original, original)
    assert found.verdict == "yes", found.reason
    assert set(found.values.compared) == {"h", "r", "s", "y", "z"}


def test_what_is_drawn_is_given_to_both() -> None:
    text = (
        "g (float[4, 8] x) => (float[4, 8] y) { r = RandomNormalLike(x) s = Add(r, x) y = OP(s) }"
    )
    original = model(text.replace("OP", "Abs"))
    found = verify_models(original, original)
    assert found.values.compared == ("s", "y")
    assert verify_models(original, model(text.replace("OP", "Neg"))).verdict == "no"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("limit", [1, 3000])
def test_values_are_compared_in_parts(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "value_bytes", lambda *_: limit)
    bert = ir.from_proto(build("bert"))
    options = ortkit.OptimizeOptions(kernels="off", verify=False, check_load=False)
    found = verify_models(bert, ortkit.optimize(bert, options).model)
    assert found.verdict == "yes", found.reason
    assert len(found.values.compared) > 30


def test_values_whose_channels_come_last_are_compared() -> None:
    pytest.importorskip("tvm")
    net = ir.from_proto(build("mobilenet_v2"))
    options = ortkit.OptimizeOptions(verify=False, check_load=False)
    candidate = ortkit.optimize(net, options).model
    assert any((value.name or "").endswith("/nhwc") for value in _values(candidate))
    found = verify_models(net, candidate)
    assert len(found.values.compared) > 15, found.reason


def _values(made: ir.Model) -> list[ir.Value]:
    return [value for node in made.graph for value in node.outputs]


def test_a_model_in_bfloat16_is_compared_in_float32() -> None:
    """ONNX Runtime has no Tanh of bfloat16 on CPUs."""
    text = "g (bfloat16[n, 8] x) => (bfloat16[n, 8] y) { m = Mul(x, x) t = OP(m) y = Neg(t) }"
    original = model(text.replace("OP", "Tanh"))
    found = verify_models(original, original)
    assert found.verdict == "partly", found.reason
    assert found.values.compared == ("m", "t", "y")
    assert [gap.what for gap in found.not_compared] == ["what comes out in the model's own types"]
    assert verify_models(original, model(text.replace("OP", "Erf"))).verdict == "no"


def test_constants_folded_in_bfloat16_are_off_by_a_rounding() -> None:
    """ONNX Runtime has no Conv of bfloat16 on CPUs: outputs are compared in float32."""
    rng, kind = np.random.default_rng(0), ml_dtypes.bfloat16
    weights = {name: rng.standard_normal(16).astype(kind) for name in ("b", "m")}
    weights |= {name: np.exp(rng.standard_normal(16)).astype(kind) for name in ("s", "v")}
    weights["w"] = random_weights(16, 4, 1, 1).astype(kind)
    original = model(
        "g (bfloat16[n, 4, 5, 5] x) => (bfloat16[n, 16, 5, 5] y)"
        " { c = Conv(x, w) d = BatchNormalization(c, s, b, m, v) y = Relu(d) }",
        weights,
    )
    options = ortkit.OptimizeOptions(verify=False, check_load=False)
    folded = ortkit.optimize(original, options).model
    assert [node.op_type for node in folded.graph] == ["Conv", "Relu"]
    wrong = folded.clone()
    filters = wrong.graph[0].inputs[1]
    assert filters is not None
    assert filters.const_value is not None
    changed = filters.const_value.numpy().copy()
    changed[3] *= kind(1.08)
    filters.const_value = ir.tensor(changed, name=filters.name)
    with Verifier(original, samples=1) as verifier:
        found = verifier.check(folded)
        assert found.verdict == "partly", found.reason
        assert [gap.what for gap in found.not_compared] == [
            "what comes out in the model's own types"
        ]
        assert verifier.check(wrong).verdict == "no"


def test_a_name_may_be_that_of_another_value_in_what_other_tools_make() -> None:
    """A sum is folded into the product, which keeps its name; our own rewrites rename it."""
    shape = "float[n, 16]"
    apart = "a = MatMul(x, w) b = Add(a, c) y = Relu(b)"
    weights = {"w": random_weights(16, 16), "c": random_weights(16)}
    texts = (f"g ({shape} x) => ({shape} y) {{ {body} }}"
             for body in (apart, "a = Gemm(x, w, c) y = Relu(a)"))  # fmt: skip
    original, folded = (model(text, weights) for text in texts)
    with Verifier(original) as verifier:
        assert verifier.check(folded).verdict == "yes"
        found = verifier.check(folded, keeps_names=True)
    assert found.verdict == "no"
    assert [each.name for each in found.values.wrong] == ["a", "y"]
    assert [each.name for each in found.outputs] == ["y"]


def test_what_a_normalization_rounds_of_its_constants_is_allowed() -> None:
    """A channel of zeros: the result is `bias - mean * factor`, of which little is left."""
    scale, mean, count = 1.7, 0.0731, 4
    factor = scale / np.sqrt(1.3 + 1e-5)
    # One of them is a rounding off by more than the floor of what is left.
    biases = np.float32(mean * factor) + np.float32(2e-4) * np.arange(1, count + 1)
    weights = {
        "w": random_weights(count, 3, 1, 1),
        "s": np.full(count, scale, np.float32),
        "b": biases.astype(np.float32),
        "m": np.full(count, mean, np.float32),
        "v": np.full(count, 1.3, np.float32),
    }
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    wide_factor = wide["s"] / np.sqrt(wide["v"] + 1e-5)
    folded = {
        "w": (wide["w"] * wide_factor[:, None, None, None]).astype(np.float32),
        "b": (wide["b"] - wide["m"] * wide_factor).astype(np.float32),
    }
    head = "g (float[n, 3, 4, 4] x) => (float[n, 4, 4, 4] y) { a = Abs(x) c = Neg(a) r = Relu(c) "
    original = model(head + "p = Conv(r, w) y = BatchNormalization(p, s, b, m, v) }", weights)
    assert verify_models(original, model(head + "y = Conv(r, w, b) }", folded)).verdict == "yes"
    folded["b"] = (folded["b"] + np.float32(1e-3)).astype(np.float32)
    assert verify_models(original, model(head + "y = Conv(r, w, b) }", folded)).verdict == "no"
