"""Attention whose op would compute something else, if it were written without care."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

from ortkit.graph.check import check_model
from ortkit.graph.text import from_text
from ortkit.passes.select import select_passes
from ortkit.rewrite.pipeline import Pipeline
from ortkit.rewrite.target import Target
from tests.passes.attention_cases import (
    GUARD,
    LOWEST,
    PADDED,
    POSITIONS,
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
MORE = (
    "<",
    "<float highest = {{3.4028234663852886e38}}, float tiny = {{1e-4}}, float floor = {{-1e30}},"
    " float[1,1,1,1] wide = {{-3.4028234663852886e38}}, float[1,1] flat = {{-1e30}},"
    " int64[4] joined_rows = {{0, 0, 12, 2}}, int64[4] parted_rows = {{0, 0, 4, 6}}, ",
)


def text_of(case: Case) -> str:
    return case.text.replace("<int64[4] heads", MORE[1].format() + "int64[4] heads", 1)


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
    result = Pipeline(select_passes("drop-identity,fuse-attention", 0)).run(model, Target())
    assert "Softmax" in {node.op_type for node in model.graph}
    assert any(reason in miss.reason for miss in result.log.misses), result.log.misses
