from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from ortkit.graph.analysis.provenance import Alignment, Group, align, labels
from ortkit.graph.io.open import open_model

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft": 1, "k": 1]>'


def model(body: str, inputs: str = "float[2, 3] x", outputs: str = "float[2, 3] y") -> ir.Model:
    return open_model(onnx.parser.parse_model(f"{HEAD} g ({inputs}) => ({outputs}) {{ {body} }}"))


def aligned(a: ir.Model, b: ir.Model) -> Alignment:
    """Align, and check what holds for any two models."""
    found = align(a, b)
    for side, one in (("before", a), ("after", b)):
        grouped = [label for group in found.groups for label in getattr(group, side)]
        assert sorted(grouped) == sorted(labels(one).values())
    assert all(group.before or group.after for group in found.groups)
    swapped = align(b, a)
    assert {Group(g.after, g.before) for g in swapped.groups} == set(found.groups)
    return found


def test_a_model_and_itself() -> None:
    one = model("a = Abs(x) b = Neg(a) y = Add(a, b)")
    found = aligned(one, one)
    assert [group.before for group in found.groups] == [("Abs(a)",), ("Neg(b)",), ("Add(y)",)]
    assert all(group.before == group.after for group in found.groups)
    assert found.values == {"x", "a", "b", "y"}


def test_several_nodes_become_one() -> None:
    a = model("s = Sqrt(x) e = Exp(s) m = Mul(s, e) y = Neg(m)")
    b = model("m = k.Fused(x) y = Neg(m)")
    assert aligned(a, b).groups == (
        Group(("Sqrt(s)", "Exp(e)", "Mul(m)"), ("Fused(m)",)),
        Group(("Neg(y)",), ("Neg(y)",)),
    )


def test_what_several_values_read_is_a_group_of_its_own() -> None:
    a = model("m = Abs(x) n = Neg(m) b = Add(x, n) c = Mul(b, n) y = Sub(c, n)")
    b = model("q = k.Mask(x) b = Add(x, q) c = Mul(b, q) y = Sub(c, q)")
    assert Group(("Abs(m)", "Neg(n)"), ("Mask(q)",)) in aligned(a, b).groups


def test_one_node_with_two_results() -> None:
    a = model("b = Abs(x) c = Neg(x) y = Add(b, c)")
    b = model("b, c = k.Both(x) y = Add(b, c)")
    assert aligned(a, b).groups[0] == Group(("Abs(b)", "Neg(c)"), ("Both(b)",))


def test_what_only_one_has() -> None:
    a = model("i = Identity(x) z = Exp(x) y = Neg(i)")
    b = model("y = Neg(x)")
    assert aligned(a, b).groups == (
        Group(("Identity(i)", "Neg(y)"), ("Neg(y)",)),
        Group(("Exp(z)",), ()),
    )


def test_a_constant_that_is_lifted() -> None:
    a = model("two = Constant <value_float = 2.0> () b = Mul(x, two) y = Add(b, two)")
    b = model("two = Identity(s) b = Mul(x, two) y = Add(b, two)", "float[2, 3] x, float s")
    assert aligned(a, b).groups[0] == Group(("Constant(two)",), ("Identity(two)",))


@pytest.mark.parametrize(
    ("declared", "is_shared"),
    [("float[2, 3] b", True), ("float16[2, 3] b", True), ("float[3, 2] b", False),
     ("int64[2, 3] b", False), ("float[N, 3] b", True), ("float[6] b", False)],
)  # fmt: skip
def test_types_and_shapes_must_agree(declared: str, is_shared: bool) -> None:
    def one(info: str) -> ir.Model:
        text = f"{HEAD} g (float[2, 3] x) => (float[2, 3] y) <{info}> {{ b = k.F(x) y = k.G(b) }}"
        return open_model(onnx.parser.parse_model(text))

    assert ("b" in aligned(one("float[2, 3] b"), one(declared)).values) is is_shared


def test_a_name_that_a_tool_left_on_another_value() -> None:
    a = model("c = Abs(x) n = Mul(c, c) r = Relu(n) y = Neg(r)")
    b = model("c = k.AbsAndSquare(x) r = Relu(c) y = Neg(r)")
    found = aligned(a, b)
    assert "c" not in found.values
    assert found.groups[0] == Group(
        ("Abs(c)", "Mul(n)", "Relu(r)"), ("AbsAndSquare(c)", "Relu(r)")
    )


def test_a_dropped_node_leaves_no_doubt_where_the_maker_is_the_same() -> None:
    a = model("one = Constant <value_float = 1.0> () c = Abs(x) n = Mul(c, one) y = Neg(n)")
    b = model("c = Abs(x) y = Neg(c)")
    assert "c" in aligned(a, b).values


def test_subgraphs_with_names_in_several_places() -> None:
    branch = "then_branch = t () => (float[2, 3] {0}) {{ s = Exp(x) {0} = Neg(s) }}"
    other = "else_branch = e () => (float[2, 3] {0}) {{ s = Abs(x) {0} = Sqrt(s) }}"
    inputs = "float[2, 3] x, bool c"
    parts = branch.format("q"), other.format("r")
    a = model(f"y = If (c) <{', '.join(parts)}>", inputs)
    b = model(f"y = If (c) <{parts[0].replace('s = Exp', 's = k.Fast')}, {parts[1]}>", inputs)
    groups = aligned(a, b).groups
    assert Group(("Exp(s)",), ("Fast(s)",)) in groups
    assert Group(("Abs(s)",), ("Abs(s)",)) in groups
    assert Group(("If(y)",), ("If(y)",)) in groups


def test_a_branch_that_is_taken_out() -> None:
    inputs = "float[2, 3] x, bool c"
    branches = (
        "then_branch = t () => (float[2, 3] q) { s = Exp(x) q = Neg(s) }, "
        "else_branch = e () => (float[2, 3] r) { r = Abs(x) }"
    )
    a = model(f"y = If (c) <{branches}>", inputs)
    b = model("s = Exp(x) y = Neg(s)", inputs)
    groups = aligned(a, b).groups
    assert Group(("Exp(s)",), ("Exp(s)",)) in groups
    assert Group(("If(y)", "Neg(q)", "Abs(r)"), ("Neg(y)",)) in groups


def test_nodes_of_one_name_are_told_apart() -> None:
    one = model("a = Abs(x) y = Neg(a)")
    for node in one.graph:
        node.name = "same"
    assert list(labels(one).values()) == ["same(a)", "same(y)"]
    aligned(one, model("y = Neg(x)"))


def test_a_long_chain_with_readers_everywhere() -> None:
    """Sets of goals that grow with the graph would take minutes here."""

    def chain(suffix: str) -> ir.Model:
        x = ir.val("x", ir.DataType.FLOAT, [1])
        value, total, nodes = x, x, []
        for i in range(5_000):
            nodes.append(ir.node("Abs", [value], name=f"abs{i}{suffix}"))
            value = nodes[-1].outputs[0]
            value.name = f"a{i}{suffix}"
            nodes.append(ir.node("Add", [total, value], name=f"add{i}"))
            total = nodes[-1].outputs[0]
            total.name = f"t{i}"
        graph = ir.Graph([x], [total], nodes=nodes, opset_imports={"": 21})
        return ir.Model(graph, ir_version=10)

    found = align(chain(""), chain("_other"))
    both = [group for group in found.groups if group.before and group.after]
    assert len(found.groups) == len(both) == 9_999


def test_a_value_with_its_channels_innermost() -> None:
    a = model("b = Abs(x) c = Neg(b) d = Exp(c) y = Neg(d)")
    b = model('"c/nhwc" = k.Conv(x) "d/nhwc_1" = k.Conv("c/nhwc") y = k.Back("d/nhwc_1")')
    found = aligned(a, b)
    assert found.values == {"x", "y"}
    assert [(group.before, group.after) for group in found.groups] == [
        (("Abs(b)", "Neg(c)"), ("Conv(c/nhwc)",)),
        (("Exp(d)",), ("Conv(d/nhwc_1)",)),
        (("Neg(y)",), ("Back(y)",)),
    ]


def test_onnx_runtimes_blocked_convolutions() -> None:
    a = model("c = Abs(x) d = Exp(c) y = Neg(d)")
    b = model("q = k.Conv(x) r = k.Conv(q) y = k.Reorder(r)")
    for node, name in zip(b.graph, ("c_nchwc", "d_nchwc", "reorder"), strict=True):
        node.domain = "com.microsoft.nchwc"
        node.name = name
    assert [group.after for group in aligned(a, b).groups] == [
        ("c_nchwc",),
        ("d_nchwc",),
        ("reorder",),
    ]


def test_groups_that_read_the_same_are_joined() -> None:
    """`m` leads to b, c and y; `q` to c and y only: the values that they read are told by."""
    a = model("m = Abs(x) b = Mul(m, m) c = Exp(m) y = Sub(c, m)")
    b = model("q = k.Mask(x) b = Identity(x) c = Exp(q) y = Sub(c, q)")
    assert Group(("Abs(m)",), ("Mask(q)",)) in aligned(a, b).groups


def test_joined_groups_tell_which_behind_them_read_the_same() -> None:
    a = model("m = Abs(x) n = Neg(m) b = Mul(m, n) c = Exp(n) d = Cos(n) y = k.F(b, c, d, m)")
    b = model("p = Abs(x) q = Neg(p) b = Abs(x) c = Exp(q) d = Cos(q) y = k.F(b, c, d, p)")
    groups = aligned(a, b).groups
    assert Group(("Abs(m)",), ("Abs(p)",)) in groups
    assert Group(("Neg(n)",), ("Neg(q)",)) in groups
