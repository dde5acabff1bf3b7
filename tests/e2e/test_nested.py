"""Bodies of control flow and of functions: optimized inside, their names and captures intact."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortkit import Optimized, OptimizeOptions, optimize
from ortkit.graph.io.text import from_text
from ortkit.verify.compare import compare_outputs
from ortkit.verify.inputs.feeds import make_feeds
from tests.e2e.judge import interface
from tests.e2e.suites import run, with_subgraphs

pytest.importorskip("onnxruntime")
HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


def optimized(text: str, level: int = 3) -> tuple[onnx.ModelProto, Optimized]:
    """Optimize a model written as text; the result must compute the same."""
    before = ir.to_proto(from_text(text))
    result = optimize(
        before, OptimizeOptions(level=level, verify=False, check_load=False, kernels="off")
    )
    after = ir.to_proto(result.model)
    onnx.checker.check_model(after)
    assert interface(after) == interface(before)
    for feeds in make_feeds(from_text(text), 2):
        for want, got in zip(run(before, feeds), run(after, feeds), strict=True):
            assert compare_outputs("", want, got).equal
    return after, result


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in with_subgraphs(model.graph.node)]


def test_a_loop_is_optimized_inside() -> None:
    after, _ = optimized(
        HEAD
        + """g (float[2] x, int64 trips) => (float[2] y, float[t,2] scanned)
        <bool go = {1}, float one = {1}, float[2] a = {1,2}> {
          outer = Exp(x)
          y, scanned = Loop(trips, go, x) <body = body
            (int64 i, bool c, float[2] s) => (bool c2, float[2] s2, float[2] out) {
              c2 = Identity(c)
              unused = Sin(s)
              k = Neg(a)
              t = Mul(s, one)
              u = Add(t, k)
              v = Neg(outer)
              w = Neg(v)
              s2 = Add(u, w)
              out = Identity(u)
            }>
        }"""
    )
    found = kinds(after)
    # What the body returns without computing it keeps its Identity, and so does `out`, as `u`
    # is read inside as well and may take over its name.
    assert sorted(found) == ["Add", "Add", "Exp", "Identity", "Loop"]


def test_a_scan_is_optimized_inside() -> None:
    after, _ = optimized(
        HEAD
        + """g (float[2] start, float[n,2] xs) => (float[2] end, float[n,2] ys) <float one = {1}> {
          end, ys = Scan <num_scan_inputs = 1, body = body
            (float[2] s, float[2] x) => (float[2] s2, float[2] y) {
              a = Mul(x, one)
              b = Cast<to = 1>(a)
              s2 = Add(s, b)
              y = Mul(s2, b)
            }> (start, xs)
        }"""
    )
    assert kinds(after) == ["Scan", "Add", "Mul"]


def test_names_of_sibling_bodies_stay_apart() -> None:
    """Both branches use the names t and k; their constants move out, to names of their own."""
    after, _ = optimized(
        HEAD
        + """g (float[2] x, bool c) => (float[2] y) {
          y = If (c) <
            then_branch = then () => (float[2] a) {
              k = Constant<value = float[2] {1,2}>()
              t = Exp(x)
              a = Add(t, k)
            },
            else_branch = other () => (float[2] b) {
              k = Constant<value = float[2] {3,4}>()
              t = Sin(x)
              b = Add(t, k)
            }>
        }"""
    )
    assert kinds(after).count("Constant") == 0
    outer = [tensor.name for tensor in after.graph.initializer]
    inner = [name for node in list(with_subgraphs(after.graph.node))[1:] for name in node.output]
    assert len(outer) == len(set(outer)) == 2
    assert not set(outer) & set(inner)


def test_a_new_name_hides_no_outer_one() -> None:
    """What a rewrite inside of a branch names must not be a name of the graph around it."""
    after, _ = optimized(
        HEAD
        + """g (float[2] x, bool c) => (float[2] y, float[2] z) <float three = {3}> {
          "d/reciprocal" = Exp(x)
          "d/factor" = Sin(x)
          y = If (c) <
            then_branch = then () => (float[2] a) { d = Div(x, three)  a = Exp(d) },
            else_branch = other () => (float[2] b) { b = Neg("d/factor") }>
          z = Add("d/reciprocal", x)
        }"""
    )
    names = [name for node in with_subgraphs(after.graph.node) for name in node.output]
    assert len(names) == len(set(names))


def test_a_captured_value_is_not_removed() -> None:
    after, _ = optimized(
        HEAD
        + """g (float[2] x, bool c) => (float[2] y) <float[2] w = {1,2}> {
          only_captured = Tanh(x)
          y = If (c) <
            then_branch = then () => (float[2] a) { a = Mul(only_captured, w) },
            else_branch = other () => (float[2] b) {
              b = If (c) <
                then_branch = then2 () => (float[2] d) { d = Neg(x) },
                else_branch = other2 () => (float[2] e) { e = Abs(only_captured) }>
            }>
        }"""
    )
    assert "Tanh" in kinds(after)
    assert [tensor.name for tensor in after.graph.initializer] == ["w"]


@pytest.mark.parametrize("level", range(4))
def test_a_function_is_inlined(level: int) -> None:
    after, _ = optimized(
        """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (float[2] x) => (float[2] y) { y = local.F<slope = 0.5>(x) }
        <domain: "local", opset_import: ["" : 21]>
        F <slope: float> (a) => (b) {
          one = Constant<value_float = 1.0>()
          t = Mul(a, one)
          b = LeakyRelu<alpha: float = @slope>(t)
        }""",
        level,
    )
    assert kinds(after) == ["LeakyRelu"]
    assert not after.functions


def test_functions_beside_custom_ops_are_kept_and_optimized_inside() -> None:
    """Their domain is a library's, which may bring its own kernel for F: F must stay a call."""
    text = """<ir_version: 10, opset_import: ["" : 21, "mine" : 1]>
        g (float[2] x) => (float[2] y) { t = mine.F(x)  y = mine.OnlyInLibrary(t) }
        <domain: "mine", opset_import: ["" : 21]>
        F (a) => (b) {
          one = Constant<value = float {1}>()
          t = Mul(a, one)
          u = Identity(t)
          b = Neg(u)
        }"""
    result = optimize(from_text(text), OptimizeOptions(verify=False, kernels="off"))
    assert [node.op_type for node in result.model.graph] == ["F", "OnlyInLibrary"]
    (function,) = result.model.functions.values()
    assert [node.op_type for node in function if node.op_type != "Constant"] == ["Neg"]


def test_a_body_of_an_unknown_op_stays_as_it_is() -> None:
    """What the op makes of its body is not known: it may not hand it the values around it."""
    text = """<ir_version: 10, opset_import: ["" : 21, "mine" : 1]>
        g (float[2] x) => (float[2] y) {
          y = mine.Apply <body = body (float[2] a) => (float[2] b) {
            k = Constant<value = float {3}>()
            d = Div(a, k)
            b = Identity(d)
          }> (x)
        }"""
    result = optimize(
        from_text(text), OptimizeOptions(level=3, verify=False, check_load=False, kernels="off")
    )
    before, after = (ir.to_proto(model) for model in (from_text(text), result.model))
    assert after.graph.node[0].attribute[0].g.node == before.graph.node[0].attribute[0].g.node


def test_results_of_a_loop_that_never_runs() -> None:
    """Nothing may be moved out of the body that fails or differs where it does not run."""
    text = (
        HEAD
        + """g (float[2] x, int64 trips) => (float[2] y) <bool go = {1}> {
          y = Loop(trips, go, x) <body = body
            (int64 i, bool c, float[2] s) => (bool c2, float[2] s2) {
              c2 = Identity(c)
              s2 = Exp(s)
            }>
        }"""
    )
    after, _ = optimized(text)
    feeds = {"x": np.ones(2, np.float32), "trips": np.array(0)}
    (got,) = run(after, feeds)
    np.testing.assert_array_equal(got, feeds["x"])
