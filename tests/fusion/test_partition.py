"""Which nodes come together, which stay apart, and that it takes linear time."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from region_models import HEAD, assert_same, find, kinds, scope_of

from ortkit.fusion.regions.partition import MAX_NODES, partition
from ortkit.graph.io.text import from_text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # A chain, and a residual sum that others read: two outputs, one region.
        ("a = Add (x, y)  b = Relu (a)  p = MatMul (b, w)  z = Add (p, a)", ["add_relu", "add"]),
        # Out through a product and back: the sum cannot stand in both.
        ("a = Tanh (x)  p = MatMul (a, w)  z = Mul (p, a)", ["tanh", "mul"]),
        # A branch that comes later may wait for it.
        (
            "a = Sigmoid (x)  b = MatMul (y, w)  p = MatMul (b, w)  z = Mul (a, p)",
            ["sigmoid_mul"],
        ),
        # Statistics of rows and what they are used for.
        (
            "m = ReduceMean <keepdims = 1> (x, last)  c = Sub (x, m)  s = Mul (c, c)"
            "  v = ReduceMean <keepdims = 1> (s, last)  o = Sqrt (v)  z = Div (c, o)",
            ["reduce_mean_sub_mul_reduce_mean_sqrt_div"],
        ),
        # Rows of another kind end a region.
        ("a = Softmax <axis = -1> (x)  z = Softmax <axis = 0> (a)", ["softmax", "softmax"]),
        # Small values have a space of their own.
        ("a = Tanh (r)  z = Add (x, a)", ["tanh", "add"]),
        # Views lie between members.
        ("a = Neg (x)  t = Transpose <perm = [1, 0]> (a)  z = Abs (t)", ["neg_transpose_abs"]),
        # But not where others need the value as it was.
        (
            "a = Neg (x)  t = Transpose <perm = [1, 0]> (a)  p = MatMul (a, w)  u = Abs (t)"
            "  q = Transpose <perm = [1, 0]> (u)  z = Add (p, q)",
            ["neg", "transpose_abs_transpose_add"],
        ),
        # A reshape at an edge costs nothing as it is.
        ("a = Reshape (x, flat)  b = Neg (a)  z = Reshape (b, back)", ["neg"]),
        # Integers that are sizes.
        ("n = Shape (x)  m = Add (n, n)  z = Relu (x)", ["relu"]),
        # What nothing reads.
        ("a = Neg (r)  b = Abs (a)  z = Relu (x)", ["neg", "relu"]),
        # A constant part is the folding passes' work.
        ("b = Neg (k)  z = Add (x, b)", ["add"]),
    ],
)
def test_what_comes_together(body: str, expected: list[str]) -> None:
    text = f"""g (float[n, 8] x, float[n, 8] y, float[8] r) => (z)
        <float[8, 8] w = {{{", ".join(["1"] * 64)}}}, int64[1] last = {{-1}},
         int64[1] flat = {{-1}}, int64[2] back = {{-1, 8}}, float[1] k = {{1}}>
        {{ {body} }}"""
    assert kinds(text) == expected


@pytest.mark.parametrize(
    ("outputs", "kind", "expected"),
    [
        ("z", "cuda", ["tanh_neg_add"]),
        ("z", "cpu", ["tanh_neg", "add"]),
        # What is computed again for each point is read there alone.
        ("z, a", "cuda", ["tanh_neg", "add"]),
        ("z, b", "cuda", ["tanh_neg", "add"]),
    ],
)
def test_small_values_are_computed_again_on_gpus(
    outputs: str, kind: str, expected: list[str]
) -> None:
    text = f"""g (float[n, 8] x, float[8] r) => ({outputs})
        {{ a = Tanh (r)  b = Neg (a)  z = Add (x, b) }}"""
    found = find(scope_of(from_text(f"{HEAD} {text}"), kind=kind))
    assert [item.region.kind for item in found if item.signature is not None] == expected


@pytest.mark.parametrize(
    ("outputs", "body", "expected"),
    [
        ("z", "c = Conv (x, k)  a = Add (c, x)  z = Relu (a)", []),
        ("z, a", "c = Conv (x, k)  a = Add (c, x)  z = Relu (a)", ["add_relu"]),
        ("z", "c = Conv (x, k)  a = Mul (c, x)  z = Relu (a)", ["mul_relu"]),
        ("z", "c = Conv (x, k)  a = Add (c, x)  z = Tanh (a)", ["add_tanh"]),
        ("z", "c = Conv (x, k)  s = Exp (c)  a = Add (c, x)  t = Relu (a)  z = Mul (s, t)",
         ["exp_add_relu_mul"]),
    ],
)  # fmt: skip
def test_cudnn_adds_and_rectifies_what_it_convolves(
    outputs: str, body: str, expected: list[str]
) -> None:
    text = f"""g (float[n, 8, 16, 16] x) => ({outputs})
        <float[8, 8, 1, 1] k = {{{", ".join(["1"] * 64)}}}> {{ {body} }}"""
    found = find(scope_of(from_text(f"{HEAD} {text}"), kind="cuda"))
    assert [item.region.kind for item in found if item.signature is not None] == expected


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "c = Conv (x, k)  a = Relu (c)  g = Gelu (c)  t = Add (a, g)  z = Conv (t, k)",
            "blocked layout",
        ),
        (
            "q = QuantizeLinear (x, s)  d = DequantizeLinear (q, s)  r = Sigmoid (d)"
            "  z = QuantizeLinear (r, s)",
            "quantized group",
        ),
        ("i = Shape (x)  a = Slice (x, i, i)  z = Relu (a)", "no constants"),
        ("z, m = LayerNormalization <axis = -1> (x, one)", "statistics of the norm are read"),
    ],
)
def test_what_may_be_no_member(body: str, reason: str) -> None:
    text = f"""{HEAD} g (float[n, 2, 8, 8] x) => (z{", m" if "m =" in body else ""})
        <float[2, 2, 1, 1] k = {{1, 1, 1, 1}}, float s = {{1}},
         float[8] one = {{1, 1, 1, 1, 1, 1, 1, 1}}> {{ {body} }}"""
    scope = scope_of(from_text(text))
    taken = [item.region.kind for item in find(scope) if item.signature is not None]
    assert taken in ([], ["relu"])
    assert any(reason in miss.reason for miss in scope.log.misses), scope.log.misses


def test_a_convolution_of_another_region_has_no_blocked_layout() -> None:
    text = f"""{HEAD} g (float[n, 2, 8, 8] x) => (z) <float[2, 2, 1, 1] k = {{1, 1, 1, 1}}>
        {{ c = Conv (x, k)  a = Tanh (x)  z = Add (a, c) }}"""
    scope = scope_of(from_text(text))
    conv, *others = scope.model.graph
    assert partition(scope, scope.model.graph).refused == (
        (others[-1], "ONNX Runtime keeps it in the blocked layout of its convolutions"),
    )
    assert partition(scope, scope.model.graph, {conv}).groups == (tuple(others),)


def test_an_activation_that_the_convolution_computes_stays_with_it() -> None:
    text = """g (float[n, 2, 8] x) => (z, y) <float[2, 2, 1] k = {1, 1, 1, 1}>
        { a = Conv (x, k)  z = Relu (a)  b = Conv (x, k)  y = Gelu (b) }"""
    assert kinds(text) == ["gelu"]


def test_regions_do_not_cross_control_flow() -> None:
    text = """g (float[n, 8] x, bool c) => (z) {
        a = Tanh (x)
        b = If (c) <
          then_branch = t () => (float[n, 8] u) { u1 = Neg (a)  u = Abs (u1) },
          else_branch = e () => (float[n, 8] v) { v = Exp (a) }>
        d = Sigmoid (a)
        z = Add (b, d) }"""
    assert kinds(text) == ["tanh_sigmoid", "add", "neg_abs", "exp"]


def chain(length: int) -> ir.Graph:
    """Rows of residual blocks: product, bias, activation, sum, norm."""
    lines = []
    last = "x"
    for index in range(length // 5):
        lines.append(
            f"p{index} = MatMul ({last}, w)  b{index} = Add (p{index}, r)"
            f"  t{index} = Tanh (b{index})  s{index} = Add (t{index}, x)"
            f"  l{index} = LayerNormalization (s{index}, r)"
        )
        last = f"l{index}"
    ones = ", ".join(["1"] * 64)
    text = f"""{HEAD} g (float[n, 8] x) => ({last})
        <float[8, 8] w = {{{ones}}}, float[8] r = {{{ones[:22]}}}> {{ {" ".join(lines)} }}"""
    return from_text(text).graph


def calls_in(work: Callable[[], object]) -> int:
    """Return how many functions of Python some work calls."""
    events: Counter[str] = Counter()
    sys.setprofile(lambda frame, event, argument: events.update((event,)))
    try:
        work()
    finally:
        sys.setprofile(None)
    return events["call"]


def test_the_work_grows_with_the_number_of_nodes() -> None:
    """Calls are counted: how long they take depends on what else the machine does."""
    counted = []
    for nodes in (500, 3500):
        graph = chain(nodes)
        scope = scope_of(ir.Model(graph, ir_version=10))
        assert len(partition(scope, graph).groups) == nodes // 5
        counted.append(calls_in(partial(partition, scope, graph)))
    # 440,000 calls take 0.05 s (EPYC, Zen 4, 2026-11).
    assert counted[1] < 1.1 * 7 * counted[0] < 1_000_000


def test_a_long_chain_is_cut_into_regions_of_bounded_size() -> None:
    nodes = 3 * MAX_NODES
    steps = "  ".join(f"v{i} = Neg (v{i - 1})" for i in range(1, nodes))
    text = f"{HEAD} g (float[n, 8] x) => (v{nodes - 1}) {{ v0 = Neg (x)  {steps} }}"
    sizes = [len(item.region.nodes) for item in find(scope_of(from_text(text)))]
    assert sizes == [MAX_NODES] * 3


def test_norms_over_groups_of_channels_and_what_is_around_them() -> None:
    text = """g (float[n, 4, 6, 6] x, float[4, 1, 1] s) => (z)
        <float[2] one = {1, 1}, float[2] zero = {0, 0}, int64[3] groups = {0, 2, -1},
         int64[4] image = {0, 4, 6, 6}> {
        a = Neg (x)  g = Reshape (a, groups)  i = InstanceNormalization (g, one, zero)
        b = Reshape (i, image)  c = Mul (b, s)  z = Sigmoid (c) }"""
    assert kinds(text) == ["neg_instance_normalization_mul_sigmoid"]


@pytest.mark.parametrize(
    ("dtype", "is_member"),
    [("float16", True), ("bool", True), ("uint64", True), ("string", False), ("complex64", False)],
)
def test_element_types(dtype: str, is_member: bool) -> None:
    text = f"{HEAD} g (bool[n, 8] k, {dtype}[n, 8] x, {dtype}[n, 8] y) => (z)"
    text += "{ a = Where (k, x, y)  z = Where (k, y, a) }"
    scope = scope_of(from_text(text))
    assert [item.region.kind for item in find(scope)] == ["where"] * is_member
    assert bool(scope.log.misses) != is_member


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "1e-45", "-0.0", "3.4028235e38"])
def test_any_number_may_stand_in_a_body(number: str) -> None:
    node = onnx.helper.make_node("Mul", ["x", "c"], ["a"])
    last = onnx.helper.make_node("Abs", ["a"], ["z"])
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 8]) for name in "xz"
    ]
    constant = onnx.numpy_helper.from_array(np.array(float(number), np.float32), "c")
    graph = onnx.helper.make_graph([node, last], "g", ends[:1], ends[1:], [constant])
    opsets = [onnx.helper.make_opsetid("", 20)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    after = assert_same(model, {"n": 3})
    assert len(after.functions) == 1
    assert len(after.graph.initializer) == 0
