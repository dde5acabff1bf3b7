"""Attention as it is written in the wild computes the same in the op that it becomes."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from ortkit.graph.io.text import from_text
from ortkit.passes.select import select_passes
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline
from tests.passes.attention_cases import (
    DROPPED,
    GUARD,
    PADDED,
    PLAIN,
    POSITIONS,
    Case,
    feeds,
    optimized,
    run,
)

pytest.importorskip("onnxruntime")

KEEP = ", bool[b,t] keep"
OWN = ", bool[b,s] keep"
BIAS = ", float[b,1,s,t] bias"
CASES = {
    "plain": Case("s1 = Identity(s0)"),
    "scaled": Case("s1 = Mul(half, s0)"),
    "negated twice": Case("a = Neg(s0)\n  b0 = Neg(half)\n  s1 = Mul(a, b0)"),
    "padding, mean of values": Case(
        PADDED + "m = Where(keep4, zero, lowest)\n  s1 = Add(s0, m)", KEEP
    ),
    "padding, guard never met": Case(
        PADDED + "m = Where(keep4, zero, lowest)\n  s1 = Add(s0, m)", KEEP, GUARD
    ),
    "padding, zero by guard": Case(
        PADDED + "m = Where(keep4, zero, lowest)\n  s1 = Add(s0, m)", KEEP, GUARD, -np.inf
    ),
    "padding, NaN": Case(
        PADDED + "m = Where(keep4, zero, lowest)\n  s1 = Add(s0, m)", KEEP, lowest=-np.inf
    ),
    "padding, softmax of raw scores": Case(
        PADDED + "m = Where(keep4, zero, lowest)\n  s1 = Add(s0, m)", KEEP, lowest=-1e4
    ),
    "chosen scores": Case(PADDED + "s1 = Where(keep4, s0, lowest)", KEEP),
    "chosen scores, zero by guard": Case(
        PADDED + "s1 = Where(keep4, s0, lowest)", KEEP, GUARD, -np.inf
    ),
    "chosen scores, NaN": Case(PADDED + "s1 = Where(keep4, s0, lowest)", KEEP, lowest=-np.inf),
    "left out where true": Case(PADDED + "s1 = Where(keep4, lowest, s0)", KEEP),
    "subtracted": Case(
        PADDED + "f = Cast<to = 1>(keep4)\n  m = Mul(f, cap)\n  s1 = Sub(s0, m)", KEEP
    ),
    "bias of unknown values": Case("s1 = Add(bias, s0)", BIAS),
    "bias of unknown values, guard": Case("s1 = Add(bias, s0)", BIAS, GUARD),
    "two biases": Case("a = Add(bias, s0)\n  s1 = Add(a, bias)", BIAS),
    "bias per head": Case(
        "s1 = Add(bias, s0)", ", float[1,2,s,t] bias", ops={"MultiHeadAttention": 1}
    ),
    "capped, then masked": Case(
        "a = Div(s0, cap)\n  c = Tanh(a)\n  d = Mul(c, cap)\n  s1 = Add(bias, d)",
        BIAS,
        level=3,
        attributes={"softcap": 20},
    ),
    "raised from -inf": Case(
        PADDED + "m = Where(keep4, zero, lowest)\n  a = Add(s0, m)\n  s1 = Max(a, finite)",
        KEEP,
        lowest=-np.inf,
    ),
    "biased, then chosen": Case(
        PADDED + "a = Add(s0, bias)\n  s1 = Where(keep4, a, lowest)", KEEP + BIAS
    ),
    "what is masked is dropped behind the Softmax": Case(
        PADDED + "s1 = Where(keep4, s0, lowest)", KEEP, DROPPED, lowest=-1e4
    ),
    "what is masked by -inf is dropped, too": Case(
        PADDED + "s1 = Where(keep4, s0, lowest)", KEEP, DROPPED, lowest=-np.inf
    ),
    "relative positions, and what is masked is dropped": Case(
        PADDED
        + "f = MatMul(qt, far)\n  r = Concat<axis = 3>(f)\n  a = Add(s0, r)\n"
        + "  s1 = Where(keep4, a, lowest)",
        KEEP + ", float[1,2,4,t] far",
        DROPPED,
        lowest=-1e4,
    ),
    "chosen, then biased": Case(
        PADDED + "a = Where(keep4, s0, lowest)\n  s1 = Add(a, bias)", KEEP + BIAS
    ),
    "chosen, then raised and biased": Case(
        PADDED + "a = Where(keep4, s0, lowest)\n  c = Max(finite, a)\n  s1 = Add(c, bias)",
        KEEP + BIAS,
        lowest=-np.inf,
    ),
    "causal": Case(
        POSITIONS + "ok = GreaterOrEqual(row, column)\n  s1 = Where(ok, s0, lowest)",
        is_self=True,
        attributes={"is_causal": 1},
    ),
    "causal, older opset": Case(
        POSITIONS + "ok = GreaterOrEqual(row, column)\n  s1 = Where(ok, s0, lowest)",
        is_self=True,
        max_opset=22,
        ops={"MultiHeadAttention": 1},
        attributes={"unidirectional": 1},
    ),
    "causal and padding": Case(
        POSITIONS
        + PADDED
        + "c = GreaterOrEqual(row, column)\n  ok = And(c, keep4)\n  s1 = Where(ok, s0, lowest)",
        OWN,
        is_self=True,
        attributes={"is_causal": 0},
    ),
    "window": Case(
        POSITIONS
        + "c = GreaterOrEqual(row, column)\n  d = Sub(row, column)\n  near = Less(d, w)\n"
        + "  ok = And(c, near)\n  s1 = Where(ok, s0, lowest)",
        is_self=True,
        attributes={"is_causal": 0},
    ),
    "strictly causal": Case(
        POSITIONS + "ok = Greater(row, column)\n  s1 = Where(ok, s0, lowest)",
        is_self=True,
        attributes={"is_causal": 0},
    ),
    "everything is kept": Case(
        POSITIONS + "ok = GreaterOrEqual(row, i0)\n  s1 = Where(ok, s0, lowest)", is_self=True
    ),
    "scaled per head": Case(
        "s1 = Mul(s0, gain)", ", float[2,1,1] gain", ops={"Attention": 1, "Mul": 1}
    ),
    "causal at level 3": Case(
        POSITIONS + "ok = GreaterOrEqual(row, column)\n  s1 = Where(ok, s0, lowest)",
        is_self=True,
        level=3,
        attributes={"is_causal": 1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_recognized_and_computes_the_same(name: str) -> None:
    case = CASES[name]
    model = optimized(case.text, case.level, case.max_opset)
    ops = Counter(node.op_type for node in model.graph)
    assert "Softmax" not in ops
    assert all(ops[op] == count for op, count in case.ops.items()), ops
    node = next(node for node in model.graph if "Attention" in node.op_type)
    for attribute, wanted in case.attributes.items():
        found = node.attributes.get(attribute)
        assert (0 if found is None else found.value) == wanted
    for seed, (queries, keys) in enumerate(((5, 5), (4, 4) if case.is_self else (3, 6))):
        given = feeds(from_text(case.text), {"b": 3, "s": queries, "t": keys}, seed)
        want, got = run(from_text(case.text), given), run(model, given)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("scores", "inputs", "reason"),
    [
        ("s1 = Tanh(s0)", "", "is slower than its parts"),
        ("s1 = Relu(s0)", "", "is between its product and its Softmax"),
        ("s1 = Mul(s0, gate)", ", float[b,1,s,t] gate", "scales single scores"),
        ("s1 = Where(keep, s0, half)", ", bool[s,t] keep", "which masks nothing"),
        ("a = Add(s0, bias)\n  s1 = Tanh(a)", ", float[s,t] bias", "before they are capped"),
        ("s1 = Add(s0, s0)", "", "is a product"),
        ("s1 = Add(s0, bias)", ", float[c,1,s,t] bias", "may be wider than its scores"),
    ],
)
def test_what_is_no_attention_stays(scores: str, inputs: str, reason: str) -> None:
    text = Case(scores, inputs).text
    model = from_text(text)
    result = Pipeline(select_passes("drop-identity,fuse-attention", 0)).run(
        model, RewriteOptions()
    )
    ops = {node.op_type for node in model.graph}
    assert "Softmax" in ops and not {"Attention", "MultiHeadAttention"} & ops
    assert any(reason in miss.reason for miss in result.log.misses)


@pytest.mark.parametrize(
    ("scores", "guard"),
    [
        # Of another mask nothing is dropped.
        ("a = Add(s0, bias)\n  s1 = Where(keep4, a, lowest)", DROPPED),
        ("s1 = Where(keep4, s0, lowest)", "pg = Where(keep4, zero, p)"),
        ("s1 = Where(keep4, s0, lowest)", "pg = Where(keep4, p, half)"),
        ("f = Not(keep4)\n  s1 = Where(keep4, s0, lowest)", "pg = Where(f, p, zero)"),
        ("s1 = Identity(s0)", DROPPED),
    ],
)
def test_other_choices_between_probabilities_stay(scores: str, guard: str) -> None:
    case = Case(PADDED + scores, KEEP + BIAS, guard, lowest=-1e4)
    assert "Softmax" in {node.op_type for node in optimized(case.text, 2).graph}


PACKED = """<ir_version: 10, opset_import: ["" : 20]>
g (float[b,s,6] x, bool[b,s] keep) => (float[b,s,8] y)
<int64[4] heads = {{0, 0, 2, 4}}, int64[3] joined = {{0, 0, 8}}, float zero = {{0}},
 float lowest = {{{lowest}}}, int64[2] middle = {{1, 2}},
 float[6,8] wq = {{{wq}}}, float[6,8] wk = {{{wk}}}, float[6,8] wv = {{{wv}}},
 float[8] bq = {{0.1, -0.2, 0.3, 0.5, -0.7, 0.2, 0.4, -0.1}}> {{
  q0 = MatMul(x, wq)
  q = Add(q0, bq)
  k = MatMul(x, wk)
  v = MatMul(x, wv)
  q4 = Reshape(q, heads)
  k4 = Reshape(k, heads)
  v4 = Reshape(v, heads)
  qt = Transpose<perm = [0, 2, 1, 3]>(q4)
  kt = Transpose<perm = [0, 2, 3, 1]>(k4)
  vt = Transpose<perm = [0, 2, 1, 3]>(v4)
  s0 = MatMul(qt, kt)
  keep4 = Unsqueeze(keep, middle)
  s1 = Where(keep4, s0, lowest)
  p = Softmax<axis = -1>(s1)
  {guard}
  o = MatMul(pg, vt)
  ot = Transpose<perm = [0, 2, 1, 3]>(o)
  y = Reshape(ot, joined)
}}"""


@pytest.mark.parametrize("guard", [PLAIN, GUARD])
@pytest.mark.parametrize("lowest", ["-3.4028234663852886e38", "-inf"])
def test_linear_layers_go_into_one_op_at_level_3(guard: str, lowest: str) -> None:
    weights = {
        name: ", ".join(f"{math.sin(3 * i + seed):.4f}" for i in range(48))
        for seed, name in enumerate(("wq", "wk", "wv"))
    }
    text = PACKED.format(guard=guard, lowest=lowest, **weights)
    random = np.random.default_rng(0)
    model = from_text(text)
    spec = "drop-identity,fuse-attention,drop-unused"
    Pipeline(select_passes(spec, 0)).run(model, RewriteOptions(level=3))
    ops = Counter((node.domain, node.op_type) for node in model.graph)
    assert ops["com.microsoft", "Attention"] == 1
    assert not ops["", "MatMul"]
    keep = random.random((3, 5)) < 0.5
    keep[0], keep[-1] = True, False
    given = {"x": random.standard_normal((3, 5, 6)).astype(np.float32), "keep": keep}
    want, got = run(from_text(text), given), run(model, given)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=2e-6)


# Half numbers are written as their bits: 64511 is -65504.
HALF = """<ir_version: 10, opset_import: ["" : 23]>
g (float16[b,2,s,8] q, float16[b,2,t,8] k, float16[b,2,t,8] v, bool[b,t] keep)
  => (float16[b,2,s,8] y)
<float16 zero = {0}, float16 lowest = {64511}, int64[2] middle = {1, 2}> {
  kt = Transpose<perm = [0, 1, 3, 2]>(k)
  s0 = MatMul(q, kt)
  keep4 = Unsqueeze(keep, middle)
  m = Where(keep4, zero, lowest)
  s1 = Add(s0, m)
  wide = Cast<to = 1>(s1)
  p = Softmax<axis = -1>(wide)
  half = Cast<to = 10>(p)
  y = MatMul(half, v)
}"""


def test_a_softmax_in_float32_of_float16_is_computed_in_float32() -> None:
    model = from_text(HALF)
    Pipeline(select_passes("fuse-attention,drop-unused", 0)).run(model, RewriteOptions())
    ops = Counter(node.op_type for node in model.graph)
    assert ops["Attention"] == 1 and ops["Cast"] == 4 and not ops["Softmax"]
    random = np.random.default_rng(0)
    given = {
        name: random.standard_normal((3, 2, size, 8)).astype(np.float16)
        for name, size in {"q": 5, "k": 4, "v": 4}.items()
    }
    given["keep"] = np.array([[1, 1, 1, 0], [1, 0, 1, 1], [0, 1, 0, 0]], np.bool_)
    want, got = run(from_text(HALF), given), run(model, given)
    np.testing.assert_allclose(got[0], want[0], rtol=2e-3, atol=2e-3)


def test_a_cache_that_a_mask_is_measured_by_stays() -> None:
    model = from_text("""<ir_version: 10, opset_import: ["" : 23]>
g (float[b,2,s,4] q, float[b,2,s,4] k, float[b,2,s,4] v, float[b,2,p,4] pk, float[b,2,p,4] pv)
  => (float[b,2,s,4] y, float[b,2,u,4] nk, float[b,2,u,4] nv) {
  nk = Concat<axis = 2>(pk, k)
  nv = Concat<axis = 2>(pv, v)
  n = Shape(nk)
  m = ConstantOfShape(n)
  d = ReduceSum(m)
  kt = Transpose<perm = [0, 1, 3, 2]>(nk)
  s0 = MatMul(q, kt)
  s1 = Add(s0, d)
  pr = Softmax<axis = -1>(s1)
  y = MatMul(pr, nv)
}""")
    before = model.clone()
    Pipeline(select_passes("fuse-attention,drop-unused", 0)).run(model, RewriteOptions())
    ops = Counter(node.op_type for node in model.graph)
    assert ops["Attention"] == 1 and ops["Concat"] == 2
    random = np.random.default_rng(0)
    given = {
        name: random.standard_normal((2, 2, size, 4)).astype(np.float32)
        for name, size in {"q": 3, "k": 3, "v": 3, "pk": 2, "pv": 2}.items()
    }
    for got, want in zip(run(model, given), run(before, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)
