"""Attention whose op would compute something else, if it were written without care."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

from ortkit.graph.check.model import check_model
from ortkit.graph.io.text import from_text
from ortkit.passes.select import select_passes
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline
from tests.passes.attention_cases import (
    GUARD,
    LOWEST,
    PADDED,
    Case,
    feeds,
    optimized,
    run,
)

pytest.importorskip("onnxruntime")

KEEP = ", bool[b,t] keep"
BIAS = ", float[b,1,s,t] bias"
BOTH = PADDED + "other4 = Unsqueeze(other, middle)\n  "
TWO = KEEP + ", bool[b,t] other"
#: Fully masked rows: mean, NaN or zero as written. All of these become an op.
TAKEN = {
    "subtracted, mean": Case(
        PADDED
        + "z1 = Not(keep4)\n  f = Cast<to = 1>(z1)\n  m = Mul(f, highest)\n  s1 = Sub(s0, m)",
        KEEP,
    ),
    "logarithm of what is kept": Case(
        PADDED + "f = Cast<to = 1>(keep4)\n  m = Log(f)\n  s1 = Add(s0, m)", KEEP
    ),
    "sum of two masks overflows": Case(
        BOTH
        + "m = Where(keep4, zero, lowest)\n  z1 = Where(other4, zero, lowest)\n"
        + "  o1 = Add(m, z1)\n  s1 = Add(s0, o1)",
        TWO,
    ),
    "two masks overflow one after the other": Case(
        BOTH
        + "m = Where(keep4, zero, lowest)\n  z1 = Where(other4, zero, lowest)\n"
        + "  a = Add(s0, m)\n  s1 = Add(a, z1)",
        TWO,
    ),
    "a choice overflows behind its factor": Case(
        PADDED + "a = Where(keep4, s0, lowest)\n  s1 = Mul(a, cap)", KEEP
    ),
    "a mask overflows behind its factor": Case(
        PADDED + "m = Where(keep4, zero, lowest)\n  a = Add(s0, m)\n  s1 = Mul(a, cap)",
        KEEP,
    ),
    "chosen, equal in all": Case(PADDED + "s1 = Where(keep4, s0, lowest)", KEEP, lowest=-1e4),
    "capped by a negative number": Case(
        "a = Div(s0, cap)\n  z1 = Neg(a)\n  c = Tanh(z1)\n  e = Mul(c, cap)\n  s1 = Neg(e)",
        level=3,
        attributes={"softcap": 20},
    ),
    "raised to another number": Case(
        "m = Mul(bias, tiny)\n  a = Add(s0, m)\n  s1 = Max(a, floor)", BIAS
    ),
    "numbers with axes": Case(
        "k3 = Unsqueeze(keep, a1)\n  m = Where(k3, zero, wide)\n  s1 = Add(s0, m)",
        ", bool[1,t] keep",
    ),
}
MORE = """<float highest = {3.4028234663852886e38}, float tiny = {1e-4}, float floor = {-1e30},
 float[1,1,1,1] wide = {-3.4028234663852886e38}, """


def text_of(case: Case) -> str:
    return case.text.replace("<int64[4] heads", MORE + "int64[4] heads", 1)


def compare(text: str, model: ir.Model, sizes: dict[str, int], seed: int = 0) -> None:
    given = feeds(from_text(text), sizes, seed)
    want, got = run(from_text(text), given), run(model, given)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("guard", ["", GUARD])
@pytest.mark.parametrize("name", TAKEN)
def test_rows_that_are_masked_whole_keep_their_result(name: str, guard: str) -> None:
    case = TAKEN[name]
    text = text_of(case)
    if guard:
        text = text.replace("pg = Identity(p)", guard)
    model = optimized(text, case.level, case.max_opset)
    ops = Counter(node.op_type for node in model.graph)
    assert "Softmax" not in ops and ops["Attention"] + ops["MultiHeadAttention"] == 1
    for seed, (queries, keys) in enumerate(((5, 5), (2, 2), (4, 6))):
        compare(text, model, {"b": 3, "s": queries, "t": keys}, seed)


REFUSED = {
    "scores chosen twice": (
        BOTH + "a = Where(keep4, s0, lowest)\n  s1 = Where(other4, a, floor)",
        TWO,
        "queries that see no key differ",
        -1e4,
    ),
    "raised, then turned": (
        "a = Neg(s0)\n  m = Add(a, bias)\n  c = Max(m, floor)\n  s1 = Neg(c)",
        BIAS,
        "are raised to a number before",
        LOWEST,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    scores, inputs, reason, lowest = REFUSED[name]
    model = from_text(text_of(Case(scores, inputs, lowest=lowest)))
    result = Pipeline(select_passes("drop-identity,fuse-attention", 0)).run(
        model, RewriteOptions()
    )
    assert "Softmax" in {node.op_type for node in model.graph}
    assert any(reason in miss.reason for miss in result.log.misses), result.log.misses


HEADER = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>\n'
WEIGHT = "{" + ", ".join(f"{np.sin(i):.3f}" for i in range(64)) + "}"
#: Text, level, sizes, whether it becomes an op.
GRAPHS: dict[str, tuple[str, int, dict[str, int], bool]] = {
    "a gain in front of linear layers": (
        f"""g (float[b,s,8] x, float[b,1,1] gain) => (float[b,s,8] y)
<float[8,8] wq = {WEIGHT}, float[8,8] wk = {WEIGHT}, float[8,8] wv = {WEIGHT}> {{
  q = MatMul(x, wq)
  k = MatMul(x, wk)
  v = MatMul(x, wv)
  kt = Transpose<perm = [0, 2, 1]>(k)
  s0 = MatMul(q, kt)
  s1 = Mul(s0, gain)
  p = Softmax<axis = -1>(s1)
  y = MatMul(p, v)
}}""",
        3,
        {"b": 2, "s": 3},
        True,
    ),
    "heads are turned in halves": (
        """g (float[b,s,64] x, float[b,s,64] k, float[b,s,64] v, float[s,8] cos, float[s,8] sin)
  => (float[b,s,64] y)
<int64[4] heads = {0, 0, 2, 32}, int64[3] joined = {0, 0, 64}, int64[1] first = {0},
 int64 i0 = {0}, int64 i1 = {1}, float low = {-inf}, int64[1] a0 = {0}, int64[1] a1 = {1}> {
  qr = com.microsoft.RotaryEmbedding(x, first, cos, sin)
  kr = com.microsoft.RotaryEmbedding(k, first, cos, sin)
  q4 = Reshape(qr, heads)
  k4 = Reshape(kr, heads)
  v4 = Reshape(v, heads)
  q = Transpose<perm = [0, 2, 1, 3]>(q4)
  kt = Transpose<perm = [0, 2, 3, 1]>(k4)
  vt = Transpose<perm = [0, 2, 1, 3]>(v4)
  n0 = Shape<start = 1, end = 2>(x)
  n1 = Squeeze(n0)
  i = Range(i0, n1, i1)
  row = Unsqueeze(i, a1)
  column = Unsqueeze(i, a0)
  ok = GreaterOrEqual(row, column)
  s0 = MatMul(q, kt)
  s1 = Where(ok, s0, low)
  p = Softmax<axis = -1>(s1)
  o = MatMul(p, vt)
  ot = Transpose<perm = [0, 2, 1, 3]>(o)
  y = Reshape(ot, joined)
}""",
        3,
        {"b": 2, "s": 3},
        True,
    ),
    "values are cached the other way round": (
        """g (float[b,2,s,4] q, float[b,2,m,4] k, float[b,2,m,4] v, float[b,2,p,4] pk,
  float[b,2,p,4] pv) => (float[b,2,s,4] y, float[b,2,u,4] nk, float[b,2,u,4] nv) {
  nk = Concat<axis = 2>(pk, k)
  nv = Concat<axis = 2>(v, pv)
  kt = Transpose<perm = [0, 1, 3, 2]>(nk)
  s0 = MatMul(q, kt)
  p0 = Softmax<axis = -1>(s0)
  y = MatMul(p0, nv)
}""",
        2,
        {"b": 2, "s": 3, "m": 4, "p": 1},
        True,
    ),
    "a mask is made from the shape of masked scores": (
        """g (float[2,1,1,4] q, float[2,1,1,4] k, float[2,1,1,4] v, float[2,1,p,4] pk,
  float[2,1,p,4] pv, bool[2,u] keep)
  => (float[2,1,1,4] y, float[2,1,t,4] nk, float[2,1,t,4] nv)
<int64[2] middle = {1, 2}, float zero = {0}, float low = {-1e30}, float one = {1}> {
  nk = Concat<axis = 2>(pk, k)
  nv = Concat<axis = 2>(pv, v)
  kt = Transpose<perm = [0, 1, 3, 2]>(nk)
  s0 = MatMul(q, kt)
  keep4 = Unsqueeze(keep, middle)
  m = Where(keep4, zero, low)
  s1 = Add(s0, m)
  n = Shape(s1)
  c = ConstantOfShape(n)
  d = Add(c, one)
  s2 = Add(s1, d)
  p0 = Softmax<axis = -1>(s2)
  y = MatMul(p0, nv)
}""",
        2,
        {"p": 2, "u": 3},
        False,
    ),
    "rows of scores are parted": (
        """g (float[2,2,4,4] q, float[2,2,6,4] k, float[2,2,6,4] v) => (float[2,2,4,4] y)
<int64[4] parted = {0, 0, 8, 3}, int64[4] joined = {0, 0, 4, 6}> {
  kt = Transpose<perm = [0, 1, 3, 2]>(k)
  s0 = MatMul(q, kt)
  s1 = Reshape(s0, parted)
  p0 = Softmax<axis = -1>(s1)
  p = Reshape(p0, joined)
  y = MatMul(p, v)
}""",
        2,
        {},
        False,
    ),
    "rows of probabilities are parted": (
        """g (float[2,2,4,4] q, float[2,2,6,4] k, float[2,2,3,4] v) => (float[2,2,8,4] y)
<int64[4] parted = {0, 0, 8, 3}> {
  kt = Transpose<perm = [0, 1, 3, 2]>(k)
  s0 = MatMul(q, kt)
  p0 = Softmax<axis = -1>(s0)
  p = Reshape(p0, parted)
  y = MatMul(p, v)
}""",
        2,
        {},
        False,
    ),
    "a Slice that starts before the first": (
        """g (float[b,3,s,8] x) => (float[b,s,8] y)
<int64[1] start = {-10}, int64[1] end = {1}, int64[1] axis = {1}, int64 i1 = {1}, int64 i2 = {2}> {
  q0 = Slice(x, start, end, axis)
  q = Squeeze(q0, axis)
  k = Gather<axis = 1>(x, i1)
  v = Gather<axis = 1>(x, i2)
  kt = Transpose<perm = [0, 2, 1]>(k)
  s0 = MatMul(q, kt)
  p = Softmax<axis = -1>(s0)
  y = MatMul(p, v)
}""",
        2,
        {"b": 2, "s": 3},
        True,
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_computes_the_same(name: str) -> None:
    body, level, sizes, is_taken = GRAPHS[name]
    model = optimized(HEADER + body, level)
    check_model(model)
    assert ("Softmax" not in {node.op_type for node in model.graph}) == is_taken
    compare(HEADER + body, model, sizes)


STRICT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[b,2,s,4] q, float[b,2,s,4] k, float[b,2,s,4] v, float[b,2,p,4] pk, float[b,2,p,4] pv)
  => (float[b,2,s,4] y, float[b,2,u,4] nk, float[b,2,u,4] nv)
<int64 i0 = {0}, int64 i1 = {1}, float low = {-3.4028234663852886e38}, int64[1] a0 = {0},
 int64[1] a1 = {1}> {
  nk = Concat<axis = 2>(pk, k)
  nv = Concat<axis = 2>(pv, v)
  kt = Transpose<perm = [0, 1, 3, 2]>(nk)
  s0 = MatMul(q, kt)
  n0 = Shape<start = 2, end = 3>(q)
  n = Squeeze(n0)
  m0 = Shape<start = 2, end = 3>(pk)
  m = Squeeze(m0)
  t = Add(m, n)
  i = Range(i0, n, i1)
  at = Add(i, m)
  j = Range(i0, t, i1)
  row = Unsqueeze(at, a1)
  column = Unsqueeze(j, a0)
  ok = COMPARED(row, column)
  s1 = Where(ok, s0, low)
  p0 = Softmax<axis = -1>(s1)
  y = MatMul(p0, nv)
}"""


@pytest.mark.parametrize("compared", ["Greater", "GreaterOrEqual"])
def test_a_cache_may_be_empty(compared: str) -> None:
    text = STRICT.replace("COMPARED", compared)
    model = optimized(text, 2)
    node = next(node for node in model.graph if node.op_type == "Attention")
    assert ("is_causal" in node.attributes) == (compared == "GreaterOrEqual")
    for past in (0, 1, 3):
        compare(text, model, {"b": 2, "s": 4, "p": past}, past)


def test_queries_may_be_as_many_as_keys_that_are_static() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
g (float[b,2,s,4] q, float[b,2,6,4] k, float[b,2,6,4] v) => (float[b,2,s,4] y)
<int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}, int64 i6 = {6}, float zero = {0},
 float low = {-3.4028234663852886e38}, int64[1] a0 = {0}, int64[1] a1 = {1}> {
  kt = Transpose<perm = [0, 1, 3, 2]>(k)
  s0 = MatMul(q, kt)
  n0 = Shape<start = 2, end = 3>(q)
  n = Squeeze(n0)
  d = Sub(i6, n)
  i = Range(i0, n, i1)
  at = Add(i, d)
  j = Range(i0, i6, i1)
  row = Unsqueeze(at, a1)
  column = Unsqueeze(j, a0)
  seen = GreaterOrEqual(row, column)
  late = GreaterOrEqual(column, i2)
  ok = And(seen, late)
  m = Where(ok, zero, low)
  s1 = Add(s0, m)
  p = Softmax<axis = -1>(s1)
  y = MatMul(p, v)
}"""
    model = optimized(text, 2)
    assert "Attention" in {node.op_type for node in model.graph}
    for queries in (1, 4, 5, 6):
        compare(text, model, {"b": 2, "s": queries})


@pytest.mark.parametrize(("queries", "is_causal"), [(4, False), (6, True)])
def test_the_last_queries_of_more_keys_are_not_causal(queries: int, is_causal: bool) -> None:
    """The operator counts the positions of queries from the first key where there is no cache."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
g (float[b,2,QUERIES,4] q, float[b,2,6,4] k, float[b,2,6,4] v) => (float[b,2,QUERIES,4] y)
<int64 i0 = {0}, int64 i1 = {1}, int64 n = {QUERIES}, int64 t = {6}, float zero = {0},
 float low = {-3.4028234663852886e38}, int64[1] a0 = {0}, int64[1] a1 = {1}> {
  kt = Transpose<perm = [0, 1, 3, 2]>(k)
  s0 = MatMul(q, kt)
  d = Sub(t, n)
  i = Range(i0, n, i1)
  at = Add(i, d)
  j = Range(i0, t, i1)
  row = Unsqueeze(at, a1)
  column = Unsqueeze(j, a0)
  ok = GreaterOrEqual(row, column)
  m = Where(ok, zero, low)
  s1 = Add(s0, m)
  p = Softmax<axis = -1>(s1)
  y = MatMul(p, v)
}""".replace("QUERIES", str(queries))
    model = optimized(text, 2)
    node = next(node for node in model.graph if node.op_type == "Attention")
    assert ("is_causal" in node.attributes) == is_causal
    compare(text, model, {"b": 2})


@pytest.mark.parametrize(
    ("kept", "dtype"),
    [
        # A key that nobody sees: each query sees others, so that a bool says all.
        ("1, 1, 1, 0, 1, 1, 1, 0", ir.DataType.BOOL),
        # A query that sees nothing gives the mean of all values.
        ("1, 1, 1, 1, 0, 0, 0, 0", ir.DataType.FLOAT),
    ],
)
def test_a_mask_is_bool_where_each_query_sees_a_key(kept: str, dtype: ir.DataType) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
g (float[b,2,2,4] q, float[b,2,4,4] k, float[b,2,4,4] v) => (float[b,2,2,4] y)
<bool[2,4] kept = {{{kept}}}, float low = {{-1e9}}> {{
  kt = Transpose<perm = [0, 1, 3, 2]>(k)
  s0 = MatMul(q, kt)
  s1 = Where(kept, s0, low)
  p = Softmax<axis = -1>(s1)
  y = MatMul(p, v)
}}"""
    model = optimized(text, 2)
    node = next(node for node in model.graph if node.op_type == "Attention")
    mask = node.inputs[3]
    assert mask is not None
    assert mask.dtype == dtype
    compare(text, model, {"b": 2})
