"""Shape inference as a whole: what it believes, what it keeps, what it never does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from shape_text import parse, shape_of, text, values

from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Dim, Size, replace_atoms
from ortkit.graph.symbolic.terms import Atom

A, B = Dim.named("a"), Dim.named("b")


def declare(value: ir.Value, shape: list[int | str | None]) -> None:
    value.type = ir.TensorType(ir.DataType.FLOAT)
    value.shape = ir.Shape(shape)


# ---- inputs and constants ------------------------------------------------------------------


def test_names_are_atoms_and_unnamed_sizes_are_told_apart() -> None:
    model = parse("y = Identity(x)", "float[a, ?, 3, ?] x")
    shape = Shapes.infer(model).shape(model.graph.inputs[0])
    assert shape is not None
    assert shape[0] == A and shape[2] == 3
    assert shape[1] != shape[3]


def test_an_expression_in_a_declared_size_is_understood() -> None:
    model = parse("y = Concat<axis = 0>(x, z)", "float[a] x, float[b] z, float[c] m")
    declare(model.graph.inputs[2], ["a + b"])
    shapes = Shapes.infer(model)
    assert shapes.shape(values(model)["m"]) == (A + B,)
    assert shapes.same_shape(values(model)["m"], values(model)["y"])


@pytest.mark.parametrize("dim", [-1, "-1", "1", "3", "1 + 2"])
def test_a_negative_size_and_a_name_that_is_a_number_say_nothing(dim: int | str) -> None:
    model = parse("y = Identity(x)", "float[a] x")
    declare(model.graph.inputs[0], [dim])
    assert text(Shapes.infer(model).shape(values(model)["y"])) == "?"


def test_an_input_of_size_zero_stays_zero() -> None:
    assert shape_of("y = Identity(x)", "float[0, 3] x") == "0, 3"


def test_what_is_counted_to_an_axis_is_as_long_as_it() -> None:
    """A convolution's axis could be negative by its formula; a value that exists has none."""
    body = """
        c = Conv <kernel_shape = [3]> (x, w)  all = Shape (c)
        m = Gather (all, two)  y = Range (zero, m, one)"""
    head = "float[b, 1, n] x, float[1, 1, 3] w"
    numbers = "int64 zero = {0}, int64 one = {1}, int64 two = {2}"
    assert shape_of(body, head, numbers) == "n - 2"


class Unreadable(ir.Tensor):
    """A constant whose data must not be asked for."""

    def numpy(self) -> np.ndarray:
        raise AssertionError("a constant was read")


@pytest.mark.parametrize(
    "array", [np.zeros((100,), np.int64), np.zeros((64,), np.float32), np.zeros(3, np.float16)]
)
def test_only_small_integers_are_read(array: np.ndarray) -> None:
    model = parse("y = Mul(x, w)", "float[a, 1] x", "float[1] w = {1}")
    weight = model.graph.initializers["w"]
    weight.const_value = Unreadable(array)
    shapes = Shapes.infer(model)
    assert shapes.contents(weight) is None
    assert shapes.shape(values(model)["y"]) == (A, array.size)


def test_a_default_of_an_input_may_be_overridden() -> None:
    model = parse("y = Reshape(x, t)", "float[6] x, int64[2] t", "int64[2] t = {2, 3}")
    assert model.graph.initializers["t"].is_graph_input()
    assert text(Shapes.infer(model).shape(values(model)["y"])) == "?, ?"
    model.ir_version = 3
    assert text(Shapes.infer(model).shape(values(model)["y"])) == "2, 3"


# ---- what the model declares -----------------------------------------------------------------


def test_declared_shapes_fill_gaps() -> None:
    model = parse("h = custom.Thing(x)\n y = Relu(h)", "float[a, 3] x")
    declare(values(model)["h"], ["a", 7])
    shapes = Shapes.infer(model)
    assert shapes.shape(values(model)["y"]) == (A, 7)
    assert shapes.dtype(values(model)["y"]) == ir.DataType.FLOAT


def test_a_declared_size_reaches_back_to_where_it_is_unknown() -> None:
    model = parse("i = NonZero(x)\n y = Identity(i)", "float[3, a] x")
    values(model)["y"].type = ir.TensorType(ir.DataType.INT64)
    values(model)["y"].shape = ir.Shape([2, 5])
    assert Shapes.infer(model).shape(values(model)["i"]) == (2, 5)


def test_rules_come_before_declarations() -> None:
    model = parse("y = Relu(x)", "float[a, 3] x")
    declare(values(model)["y"], [8, 9])
    assert Shapes.infer(model).shape(values(model)["y"]) == (A, 3)


def test_names_that_exporters_make_up_say_nothing() -> None:
    model = parse("h = custom.Thing(x)\n y = Relu(h)", "float[a] x")
    declare(values(model)["h"], ["Thingh_dim_0", "Thingh_dim_0"])
    shape = Shapes.infer(model).shape(values(model)["h"])
    assert shape is not None
    assert shape[0] != shape[1]


def test_names_of_outputs_say_nothing() -> None:
    model = parse("i = NonZero(x)\n y = Relu(i)", "float[a] x")
    declare(values(model)["y"], [1, "a"])
    assert Shapes.infer(model).shape(values(model)["i"]) != (1, A)


def test_a_function_of_the_model_is_not_taken_for_an_operator() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'
        "g (float[a, 3] x) => (float y) { y = com.microsoft.Gelu(x) }\n"
        '<domain: "com.microsoft", opset_import: ["" : 18]>\n'
        "Gelu (p) => (q) { t = Constant<value = int64[1] {-1}>()\n q = Reshape(p, t) }"
    )
    model.graph.outputs[0].shape = None
    shapes = Shapes.infer(model)
    assert shapes.shape(model.graph.outputs[0]) == (3 * A,)  # what its body makes of x
    inside = next(iter(model.functions.values())).outputs[0]
    assert shapes.rank(inside) == 1
    assert shapes.shape(inside) != (3 * A,)  # of other calls it makes something else
    shapes.infer_node(model.graph[0])
    assert shapes.shape(inside) != (3 * A,)


def test_calls_of_functions_with_attributes_or_calls_are_not_followed() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21, "own" : 1]>\n'
        "g (float[a, 3] x) => (float y, float z)\n"
        "{ y = own.Outer(x) z = own.Turn<to = [1, 0]>(x) }\n"
        '<domain: "own", opset_import: ["" : 21, "own" : 1]>\n'
        "Outer (p) => (q) { q = own.Inner(p) }\n"
        '<domain: "own", opset_import: ["" : 21]>\n'
        "Inner (p) => (q) { q = Relu(p) }\n"
        '<domain: "own", opset_import: ["" : 21]>\n'
        "Turn <to>(p) => (q) { q = Transpose<perm: ints = @to>(p) }"
    )
    for output in model.graph.outputs:
        output.shape = None
    shapes = Shapes.infer(model)
    assert [shapes.shape(output) for output in model.graph.outputs] == [None, None]


def test_a_call_may_leave_inputs_and_outputs_of_its_function_out() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21, "own" : 1]>\n'
        "g (float[a, 3] x) => (float y) { y = own.Two(x) }\n"
        '<domain: "own", opset_import: ["" : 21]>\n'
        "Two (p, low) => (q, r) { q = Clip(p, low) r = Neg(p) }"
    )
    model.graph.outputs[0].shape = None
    assert Shapes.infer(model).shape(model.graph.outputs[0]) == (A, 3)


# ---- keeping it true -------------------------------------------------------------------------


def test_a_new_node_is_inferred_by_itself() -> None:
    model = parse("y = Relu(x)", "float[a, 3] x")
    shapes = Shapes.infer(model)
    node = ir.node("Transpose", [values(model)["y"]], {"perm": [1, 0]})
    model.graph.append(node)
    shapes.infer_node(node)
    assert shapes.shape(node.outputs[0]) == (3, A)


def test_a_value_nobody_inferred_is_found_on_demand() -> None:
    model = parse("y = Relu(x)", "float[a, 3] x")
    shapes = Shapes.infer(model)
    first = ir.node("Transpose", [values(model)["y"]], {"perm": [1, 0]})
    second = ir.node("Relu", first.outputs)
    assert shapes.shape(second.outputs[0]) == (3, A)


def test_a_changed_node_is_inferred_again() -> None:
    model = parse("y = Transpose<perm = [1, 0]>(x)", "float[a, 3] x")
    shapes = Shapes.infer(model)
    node = model.graph[0]
    node.attributes["perm"] = ir.AttrInt64s("perm", [0, 1])
    shapes.infer_node(node)
    assert shapes.shape(values(model)["y"]) == (A, 3)


def test_merge_keeps_the_more_precise_size() -> None:
    body = "i = NonZero(x)\n f = Cast<to = 1>(i)\n h = custom.Thing(x)\n y = Identity(x)"
    model = parse(body, "float[2, a] x")
    found = values(model)
    shapes = Shapes.infer(model)
    shapes.merge(found["f"], found["x"])
    assert shapes.shape(found["f"]) == (2, A)
    shapes.merge(found["h"], found["x"])
    assert shapes.shape(found["h"]) == (2, A)
    shapes.merge(found["x"], found["i"])
    assert shapes.shape(found["x"]) == (2, A)


def test_same_shape_needs_proof() -> None:
    model = parse(
        "y = Add(x, z)\n h = custom.Thing(x)", "float[a, 3] x, float[a, 3] z, float[b, 3] w"
    )
    found, shapes = values(model), Shapes.infer(model)
    assert shapes.same_shape(found["x"], found["z"])
    assert not shapes.same_shape(found["x"], found["w"])
    assert not shapes.same_shape(found["h"], found["h"])


def test_a_model_with_nodes_out_of_order_or_broken_does_not_fail() -> None:
    body = (
        "h = Transpose<perm = [7]>(x)\n i = Concat()\n j = Reshape(x)\n k = Gather(x, x)\n"
        "l = Conv<strides = [0, 0]>(x, x)\n m = MatMul(x)\n n = ConstantOfShape(x)\n"
        "o = Split<axis = 9>(x)\n p = NoSuchOperator(x)\n q = Einsum<equation = \"zz->\">(x)\n"
        "r = ReduceSum<axes = [5]>(x)\n s = Cast(x)\n t = If(x)\n u = Loop(x)\n"
        "v = Slice(x, x, x)\n w = Unsqueeze(x)\n y = Relu(x)"
    )  # fmt: skip
    model = parse(body, "float[a, 3] x")
    shapes = Shapes.infer(model)
    for name in "hijklmnopqrstuvw":
        shapes.shape(values(model)[name])
    assert shapes.shape(values(model)["y"]) == (A, 3)


def test_a_chain_of_growing_sizes_stays_small() -> None:
    """Each Slice wraps the size once more; the expression must not grow without end."""
    lines = ["h0 = Identity(x)"]
    for number in range(300):
        lines.append(f"g{number} = Slice(h{number}, s, e)")
        lines.append(
            f"h{number + 1} = Conv<strides = [{2 + number % 3}], pads = [5, 5]>(g{number}, w)"
        )
    model = parse(
        "\n".join([*lines, "y = Identity(h300)"]),
        "float[1, 1, a] x, float[1, 1, 3] w",
        "int64[3] s = {0, 0, 1}, int64[3] e = {1, 1, 999999}",
    )
    shape = Shapes.infer(model).shape(values(model)["y"])
    assert shape is not None
    assert len(str(shape[2])) < 2000


# ---- control flow ----------------------------------------------------------------------------


def branch(then: str, other: str) -> str:
    return (
        f"y = If(c) <then_branch = t () => (float t_y) {{ t_y = {then} }}, "
        f"else_branch = e () => (float e_y) {{ e_y = {other} }}>"
    )


def undeclared(body: str, inputs: str, constants: str = "") -> ir.Model:
    model = parse(body, inputs, constants)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for value in node.outputs:
            value.type = value.shape = None
    return model


def inferred(body: str, inputs: str, constants: str = "", output: str = "y") -> str:
    model = undeclared(body, inputs, constants)
    return text(Shapes.infer(model).shape(values(model)[output]))


@pytest.mark.parametrize(
    ("then", "other", "expected"),
    [
        ("Relu(x)", "Neg(x)", "a, 3"),
        ("Relu(x)", "Transpose(x)", "?, ?"),
        ("Relu(x)", "Relu(z)", "?, 3"),
        ("Relu(x)", "Size(x)", "none"),
        ("NonZero(x)", "NonZero(x)", "2, ?"),
        ("Relu(x)", "custom.Thing(x)", "none"),
    ],
)
def test_if_knows_what_both_branches_give(then: str, other: str, expected: str) -> None:
    assert inferred(branch(then, other), "float[a, 3] x, float[b, 3] z, bool c") == expected


def test_if_with_a_decided_condition_is_its_branch() -> None:
    body = "s = Shape(x)\n r = Size(s)\n c = Equal(r, two)\n" + branch("Relu(x)", "Size(x)")
    assert inferred(body, "float[a, 3] x", "int64 two = {2}") == "a, 3"
    assert inferred(body, "float[a] x", "int64 two = {2}") == ""


def test_what_a_branch_requires_does_not_hold_outside() -> None:
    """The product says that n is 7, but only where it is computed."""
    body = "n = NonZero(x)\n f = Cast<to = 1>(n)\n" + branch("MatMul(f, w)", "MatMul(f, v)")
    inputs = "float[3, a] x, float[7, 2] w, float[8, 2] v, bool c"
    assert inferred(body, inputs, output="f") == "2, ?"
    assert inferred(body, inputs) == "2, 2"


def loop(step: str, carried: str = "x", scan: str = "Relu(h)") -> str:
    return (
        f"y, ys = Loop(n, c, {carried}) <body = b (int64 i, bool k, float h) => "
        f"(bool k_out, float h_out, float row) "
        f"{{ k_out = Identity(k)\n h_out = {step}\n row = {scan} }}>"
    )


def looped(step: str, scan: str = "Relu(h)", output: str = "y") -> str:
    inputs = "float[a, 3] x, int64 n, bool c"
    model = undeclared(loop(step, scan=scan), inputs)
    body = model.graph[0].attributes["body"].as_graph()
    for value in body.inputs:
        value.shape = None
    return text(Shapes.infer(model).shape(values(model)[output]))


def test_loop_keeps_what_no_iteration_changes() -> None:
    assert looped("Relu(h)") == "a, 3"
    assert looped("Relu(h)", output="ys") == "?, a, 3"


def test_loop_forgets_what_an_iteration_changes() -> None:
    assert looped("Concat<axis = 0>(h, h)") == "?, 3"
    assert looped("Transpose(h)") == "?, ?"
    assert looped("Size(h)") == "none"
    assert looped("Concat<axis = 0>(h, h)", output="ys") == "?, ?, 3"


def test_sizes_of_one_iteration_do_not_leave_the_loop() -> None:
    model = undeclared(loop("Relu(h)", scan="NonZero(h)"), "float[a, 3] x, int64 n, bool c")
    shapes = Shapes.infer(model)
    found = values(model)
    inside, outside = shapes.shape(found["row"]), shapes.shape(found["ys"])
    assert inside is not None and outside is not None
    assert outside[1] == 2
    assert outside[2] != inside[1]


def test_scan_takes_its_inputs_apart_and_puts_its_outputs_together() -> None:
    body = (
        "y, ys = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1], "
        "body = b (float h, float e) => (float h_out, float row) "
        "{ h_out = Relu(h)\n row = MatMul(e, e) }>(s, x)"
    )
    model = undeclared(body, "float[a] s, float[b, t, b] x")
    for value in model.graph[0].attributes["body"].as_graph().inputs:
        value.shape = None
    shapes = Shapes.infer(model)
    assert text(shapes.shape(values(model)["y"])) == "a"
    assert text(shapes.shape(values(model)["ys"])) == "b, b, t"


def test_contents_are_sizes() -> None:
    model = parse("y = Shape(x)", "float[a, 3] x")
    expected: tuple[Size, ...] = (A, 3)
    assert Shapes.infer(model).contents(values(model)["y"]) == expected


def test_rank_and_type_of_what_is_no_tensor_are_unknown() -> None:
    model = undeclared("y = SequenceConstruct(x, x)", "float[a, 3] x")
    model.graph.outputs[0].type = ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))
    shapes = Shapes.infer(model)
    assert shapes.rank(values(model)["y"]) is None
    assert shapes.dtype(values(model)["y"]) is None


# ---- unknowns that became known --------------------------------------------------------------


def test_a_size_is_settled_once_until_more_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counted(size: Size, choose: Callable[[Atom], Size | None]) -> Size:
        nonlocal calls
        calls += 1
        return replace_atoms(size, choose)

    monkeypatch.setattr("ortkit.graph.shapes.infer.replace_atoms", counted)
    model = parse(
        "i = NonZero(x) y = Transpose<perm = [1, 0]>(i) m = NonZero(z) n = Concat<axis = 1>(i, m)",
        "float[a] x, float[b] z",
    )
    shapes, made = Shapes.infer(model), values(model)
    left, right = (shapes.shape(made[name]) for name in "im")
    assert left is not None and right is not None
    shapes.equate(left[1], A)
    assert shapes.shape(made["y"]) == (A, 1)
    calls = 0
    for _ in range(9):
        assert shapes.shape(made["n"]) == (1, A + right[1])
    assert calls <= 4
    shapes.equate(right[1], B)
    assert shapes.shape(made["n"]) == (1, A + B)
