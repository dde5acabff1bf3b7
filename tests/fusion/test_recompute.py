"""Cheap nodes that several regions read are computed in each of them, where that is less work."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest
from region_models import HEAD, accept, assert_same, feeds_of, fuse, run

ONES = ", ".join(["1"] * 64)


def model(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""{HEAD} g (float[n, 8] x, float[n, 8] y) => (float[n, 8] z)
        <float[8, 8] w = {{{ONES}}}, int64[1] zero = {{0}}, int64[1] four = {{4}},
         int64[1] one = {{1}}, int64[1] eight = {{8}}> {{ {body} }}"""
    )


def ops(after: onnx.ModelProto) -> list[list[str]]:
    functions = {function.name: function for function in after.functions}
    return [
        [each.op_type for each in functions[node.op_type].node if each.op_type != "Constant"]
        if node.op_type in functions
        else [node.op_type]
        for node in after.graph.node
    ]


def test_a_split_is_read_in_its_place() -> None:
    before = model(
        "a, b = Split <axis = 1, num_outputs = 2> (x)  t = Neg (a)  c = Concat <axis = 1> (t, t)"
        "  p = MatMul (c, w)  l, r = Split <axis = 1, num_outputs = 2> (p)  m = Mul (l, b)"
        "  q = Concat <axis = 1> (m, r)  z = MatMul (q, w)"
    )
    after = assert_same(before, {"n": 300})
    assert ops(after) == [
        ["Split", "Neg", "Concat"],
        ["MatMul"],
        ["Split", "Split", "Mul", "Concat"],
        ["MatMul"],
    ]


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("Neg", [["Neg", "Abs"], ["MatMul"], ["Neg", "Add"]]),
        # Too much work to be done twice.
        ("Tanh", [["Tanh", "Abs"], ["MatMul"], ["Add"]]),
    ],
)
def test_a_cheap_node_is_computed_twice(op_type: str, expected: list[list[str]]) -> None:
    before = model(f"a = {op_type} (x)  b = Abs (a)  p = MatMul (b, w)  z = Add (p, a)")
    assert ops(assert_same(before, {"n": 300})) == expected


def test_a_sum_of_two_is_not() -> None:
    """Two tensors would be read for one that is written and read."""
    before = model("a = Add (x, y)  b = Abs (a)  p = MatMul (b, w)  z = Add (p, a)")
    assert ops(assert_same(before, {"n": 300})) == [["Add", "Abs"], ["MatMul"], ["Add"]]


def test_what_others_read_is_made_once() -> None:
    before = model(
        "a = Neg (x)  b = Abs (a)  p = MatMul (b, w)  q = MatMul (a, w)  s = Add (p, a)"
        "  z = Add (s, q)"
    )
    assert ops(assert_same(before, {"n": 300}))[0] == ["Neg", "Abs"]


def test_one_of_two_regions_may_be_rolled_back() -> None:
    before = model("a = Neg (x)  b = Abs (a)  p = MatMul (b, w)  z = Add (p, a)")
    feeds = feeds_of(before, {"n": 300})
    (want,) = run(before, feeds)
    for denied in ("fuse-regions:neg_abs:b", "fuse-regions:neg_add:z"):
        after = fuse(before, accept, [denied])
        assert len(after.functions) == 1
        assert (run(after, feeds)[0] == want).all()
