"""Attention becomes a region with the biases and parts of its operands, where that pays."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from ortkit.custom_ops.tvm.attention.fp32 import ANCHOR
from region_models import HEAD, feeds_of, found_by, run, scope_of, search_of

from ortkit.fusion.regions.anchors import grown
from ortkit.fusion.regions.cost_model import CostModel
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.lower import lower_region
from ortkit.graph.io.text import from_text
from ortkit.kernels.build.library import refusal
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope
from ortkit.targets.target import Target

found_around = partial(grown, anchor=ANCHOR)

HEADS = "q_num_heads = 12, kv_num_heads = 12"
CAUSAL = f"Attention <{HEADS}, is_causal = 1>"


def zeros(count: int) -> str:
    return "{" + ", ".join(["0"] * count) + "}"


WEIGHTS = f"<float[768] r = {zeros(768)}, float[2304] R = {zeros(2304)}>"


def judge(signature: RegionSignature) -> Refused | None:
    return refusal(signature, Target("cpu", "x86-64-v4"), "tvm")


def candidates_of(scope: Scope) -> list[Candidate]:
    return found_by(ANCHOR, scope, judge, CostModel)


def rounding_judge(signature: RegionSignature) -> Refused | None:
    return refusal(signature, Target("cpu", "x86-64-v4-amx"), "tvm")


def rounded_candidates(body: str, inputs: str, output: str = "y") -> tuple[Scope, list[Candidate]]:
    """For a processor with tiles."""
    scope = scope_of(from_text(f"{HEAD} g ({inputs}) => ({output}) {{ {body} }}"))
    return scope, found_by(ANCHOR, scope, rounding_judge, CostModel)


def find(body: str, inputs: str, output: str = "y") -> tuple[Scope, list[Candidate]]:
    text = f"{HEAD} g ({inputs}) => ({output}) {WEIGHTS} {{ {body} }}"
    scope = scope_of(from_text(text))
    return scope, candidates_of(scope)


def rows(*names: str, batch: str = "b", length: str = "s", columns: int = 768) -> str:
    return ", ".join(f"float[{batch}, {length}, {columns}] {name}" for name in names)


def ops(candidate: Candidate) -> list[str]:
    assert candidate.signature is not None, candidate.reason
    return [node.op_type for node in candidate.region.nodes]


def test_causal_attention_is_taken_by_itself() -> None:
    _, (one,) = find(f"y = {CAUSAL} (q, k, v)", rows("q", "k", "v"))
    assert ops(one) == ["Attention"]
    assert one.prediction.gain > 0.5


def test_operands_of_unknown_shape_are_the_reason() -> None:
    _, (one,) = find(f"y = {CAUSAL} (q, k, v)", f"float[] q, {rows('k', 'v')}")
    assert one.signature is None
    assert (one.region.kind, one.reason) == ("attention", "operands of unknown shape")
    assert [value.name for value in one.region.outputs] == ["y"]


def test_biases_of_operands_are_taken_in() -> None:
    body = f"Q = Add (q, r)  V = Add (r, v)  y = {CAUSAL} (Q, k, V)"
    _, (one,) = find(body, rows("q", "k", "v"))
    assert sorted(ops(one)) == ["Add", "Add", "Attention"]
    assert one.region.kind == "bias_attention"


def test_parts_of_one_tensor_are_taken_in() -> None:
    body = (
        f"X = Add (x, R)  Q, K, V = Split <axis = 2, num_outputs = 3> (X)  y = {CAUSAL} (Q, K, V)"
    )
    _, (one,) = find(body, rows("x", columns=2304))
    assert ops(one) == ["Add", "Split", "Attention"]


def test_what_others_read_stays_outside() -> None:
    body = f"""X = Add (x, R)  Q, K, V = Split <axis = 2, num_outputs = 3> (X)
        z = Neg (K)  y = {CAUSAL} (Q, K, V)"""
    _, (one,) = find(body, rows("x", columns=2304), f"{rows('y')}, {rows('z')}")
    assert ops(one) == ["Attention"]


def test_a_sum_with_something_else_than_a_bias_stays_outside() -> None:
    _, (one,) = find(f"Q = Add (q, p)  y = {CAUSAL} (Q, k, v)", rows("q", "p", "k", "v"))
    assert ops(one) == ["Attention"]


def test_a_bias_that_becomes_part_of_a_gemm_stays_outside() -> None:
    body = f"M = MatMul (q, w)  Q = Add (M, r)  y = {CAUSAL} (Q, k, v)"
    fixed = f"{rows('q', 'k', 'v', batch='1', length='64')}, float[768, 768] w"
    assert ops(find(body, fixed)[1][0]) == ["Attention"]
    told_late = f"{rows('q', 'k', 'v')}, float[768, 768] w"
    assert ops(find(body, told_late)[1][0]) == ["Add", "Attention"]


@pytest.mark.parametrize(
    ("length", "is_taken"), [("128", False), ("s", False), ("512", False), ("1500", True)]
)
def test_plain_attention_pays_where_scores_leave_the_caches(length: str, is_taken: bool) -> None:
    body = f"y = Attention <{HEADS}> (q, k, v)"
    _, (one,) = find(body, rows("q", "k", "v", batch="1", length=length))
    assert (one.signature is not None) == is_taken
    assert is_taken or "predicted to gain" in one.reason


def test_a_single_query_is_left_to_the_runtime() -> None:
    inputs = f"{rows('q', batch='1', length='1')}, {rows('k', 'v', batch='1', length='128')}"
    _, (one,) = find(f"y = Attention <{HEADS}> (q, k, v)", inputs)
    assert "predicted to gain" in one.reason


def test_masks_pay() -> None:
    inputs = f"{rows('q', 'k', 'v')}, float[b, 1, s, s] m"
    _, (one,) = find(f"y = Attention <{HEADS}> (q, k, v, m)", inputs)
    assert ops(one) == ["Attention"]


@pytest.mark.parametrize(
    ("node", "inputs", "reason"),
    [
        (f"Attention <{HEADS}, softcap = 2.0> (q, k, v)", rows("q", "k", "v"), "soft cap"),
        (f"{CAUSAL} (q, k, v, m)", f"{rows('q', 'k', 'v')}, float[b, 1, s, t] m", "queries and"),
        (f"{CAUSAL} (q, k, v)", f"{rows('q')}, {rows('k', 'v', batch='c')}", "equal sizes"),
    ],
)
def test_what_no_kernel_computes_says_why(node: str, inputs: str, reason: str) -> None:
    scope, (one,) = find(f"y = {node}", inputs)
    assert one.signature is None
    assert reason in one.reason
    assert [node.op_type for node in scope.model.graph] == ["Attention"]


def test_nodes_of_other_regions_are_left_alone() -> None:
    scope, (one,) = find(f"Q = Add (q, r)  y = {CAUSAL} (Q, k, v)", rows("q", "k", "v"))
    add, attention = one.region.nodes
    (without,) = found_around(replace(search_of(scope, judge, CostModel), excluded={add}))
    assert ops(without) == ["Attention"]
    assert not list(
        found_around(replace(search_of(scope, judge, CostModel), excluded={attention}))
    )


def test_the_body_is_the_region() -> None:
    body = (
        f"X = Add (x, R)  Q, K, V = Split <axis = 2, num_outputs = 3> (X)  y = {CAUSAL} (Q, K, V)"
    )
    scope, (one,) = find(body, rows("x", columns=2304), rows("y"))
    before = ir.to_proto(scope.model)
    assert one.signature is not None
    assert lower_region(scope, one.region, one.signature, {})
    after = ir.to_proto(scope.model)
    assert [node.domain for node in after.graph.node] == ["ortkit.fused"]
    onnx.checker.check_model(after, full_check=True)
    feeds = feeds_of(before, {"b": 2, "s": 9})
    for got, want in zip(run(after, feeds), run(before, feeds), strict=True):
        np.testing.assert_array_equal(got, want)


ROUNDED = "q = Cast <to = 1> (n)  k = Cast <to = 1> (l)  v = Cast <to = 1> (w)"


def narrow(*names: str, batch: str = "b", columns: int = 768) -> str:
    return ", ".join(f"bfloat16[{batch}, s, {columns}] {name}" for name in names)


def test_roundings_of_operands_and_of_the_result_are_taken_in() -> None:
    body = f"""n = Cast <to = 16> (x)  {ROUNDED}  a = Attention <{HEADS}> (q, k, v)
        y = Cast <to = 16> (a)"""
    output = "bfloat16[b, s, 768] y"
    _, (one,) = rounded_candidates(body, f"{rows('x')}, {narrow('l', 'w')}", output)
    assert sorted(ops(one)) == ["Attention", *["Cast"] * 5]
    assert [value.name for value in one.region.inputs] == ["x", "l", "w"]
    assert [value.name for value in one.region.outputs] == ["y"]


def test_parts_that_are_rounded_are_taken_in() -> None:
    body = f"""x = Cast <to = 1> (n)  q, k, v = Split <axis = 2, num_outputs = 3> (x)
        y = Attention <{HEADS}> (q, k, v)"""
    _, (one,) = rounded_candidates(body, narrow("n", columns=2304))
    assert ops(one) == ["Cast", "Split", "Attention"]


def test_what_else_reads_a_rounding_keeps_it() -> None:
    body = f"""n = Cast <to = 16> (x)  {ROUNDED}  y = Attention <{HEADS}> (q, k, v)
        z = Identity (n)"""
    _, (one,) = rounded_candidates(
        body, f"{rows('x')}, {narrow('l', 'w')}", f"{rows('y')}, {narrow('z')}"
    )
    assert ops(one) == ["Cast"] * 3 + ["Attention"]
    assert one.region.inputs[0].name == "n"


def test_rounded_attention_is_taken_whatever_it_is_predicted_to_gain() -> None:
    body = f"{ROUNDED}  y = Attention <{HEADS}> (q, k, v)"
    inputs = "bfloat16[1, 1, 768] n, bfloat16[1, 8, 768] l, bfloat16[1, 8, 768] w"
    _, (one,) = rounded_candidates(body, inputs)
    assert one.signature is not None, one.reason


def test_a_rounding_behind_attention_in_float32_stays_outside() -> None:
    body = f"a = Attention <{HEADS}, is_causal = 1> (q, k, v)  y = Cast <to = 16> (a)"
    _, (one,) = rounded_candidates(body, rows("q", "k", "v"), narrow("y"))
    assert ops(one) == ["Attention"]
