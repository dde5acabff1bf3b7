"""Affine ops around Conv, ConvTranspose, Gemm and MatMul go into the weights, exactly enough."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from ortkit.passes.fold_affine_into_conv import FoldAffineIntoConv
from ortkit.passes.fold_affine_into_matmul import FoldAffineIntoMatmul
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline, PipelineResult
from tests.passes import graphs
from tests.passes.graphs import Graph, assert_refused, assert_rewritten, feeds_of, kinds, run

PASSES = (FoldAffineIntoConv(), FoldAffineIntoMatmul())


def rewritten(model: onnx.ModelProto) -> tuple[onnx.ModelProto, PipelineResult]:
    return graphs.rewritten(model, PASSES)


def check(model: onnx.ModelProto, expected: list[str]) -> None:
    assert_rewritten(model, PASSES, expected)


def refused(model: onnx.ModelProto, reason: str = "") -> None:
    assert_refused(model, PASSES, reason)


# ---- after a convolution -----------------------------------------------------------------

SPACES = {1: (9,), 2: (9, 8), 3: (5, 6, 7)}


@pytest.mark.parametrize("dims", SPACES)
@pytest.mark.parametrize(("groups", "bias"), [(1, True), (2, False), (4, True)])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_batch_norm_after(kind: str, dims: int, groups: int, bias: bool) -> None:
    g = Graph()
    x = g.input(2, 4, *SPACES[dims])
    kernel = (3, 2, 2)[:dims]
    weight = g.kernel(kind, 4, 12, groups, *kernel)
    extra = (g.constant(12),) if bias else ()
    attributes = {"group": groups, "pads": [1] * 2 * dims, "dilations": [2] + [1] * (dims - 1)}
    y = g.op(kind, x, weight, *extra, **attributes)
    check(g.model(g.batch_norm(y, 12, epsilon=1e-3)), [kind])


@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6, 1, 1), (), (1,), (1, 1, 1)])
@pytest.mark.parametrize("op", ["Mul", "Add", "Sub", "Div"])
@pytest.mark.parametrize("left", [False, True])
def test_arithmetic_after_convolution(op: str, shape: tuple[int, ...], left: bool) -> None:
    g = Graph()
    y = g.op("Conv", g.input(2, 3, 8, 8), g.constant(6, 3, 3, 3))
    c = g.constant(*shape)
    z = g.op(op, c, y) if left else g.op(op, y, c)
    if op == "Div" and left:
        refused(g.model(z))
    else:
        check(g.model(z), ["Conv"])


def test_a_long_chain_becomes_one_convolution() -> None:
    g = Graph()
    y = g.op("Conv", g.input("n", 3, 8, 8), g.constant(6, 3, 3, 3), g.constant(6))
    for _ in range(3):
        y = g.batch_norm(y, 6)
    y = g.op("Neg", g.op("Sub", g.op("Mul", y, g.constant(6, 1, 1)), g.constant(1)))
    check(g.model(g.op("Add", g.op("Div", y, g.constant()), g.constant(1, 6, 1, 1))), ["Conv"])


def test_a_uniform_factor_is_found_beyond_layout() -> None:
    g = Graph()
    y = g.op("Conv", g.input(2, 3, 8, 8), g.constant(4, 3, 8, 8), g.constant(4))
    t = g.op("Transpose", g.op("Reshape", y, "shape"), perm=[0, 2, 1])
    g.constants.append(numpy_helper.from_array(np.array([2, 4, -1]), "shape"))
    check(g.model(g.op("Mul", t, g.constant())), ["Conv", "Reshape", "Transpose"])


def test_a_factor_per_channel_stays_beyond_layout() -> None:
    g = Graph()
    y = g.op("Conv", g.input(2, 3, 8, 8), g.constant(4, 3, 8, 8))
    t = g.op("Transpose", y, perm=[0, 2, 3, 1])
    refused(g.model(g.op("Mul", t, g.constant(4))))


@pytest.mark.parametrize(
    "shape", [(4,), (4, 1), (1, 1, 4), (6, 1, 4), (2, 6, 1, 1), (1, 1, 6, 1, 1), (1, 1, 1, 1, 1)]
)
def test_constants_that_are_not_per_channel_stay(shape: tuple[int, ...]) -> None:
    g = Graph()
    y = g.op("Conv", g.input(2, 3, 4, 4), g.constant(6, 3, 1, 1))
    refused(g.model(g.op("Mul", y, g.constant(*shape))))


def test_one_channel_must_not_be_widened() -> None:
    g = Graph()
    y = g.op("Conv", g.input(2, 3, 4, 4), g.constant(1, 3, 1, 1))
    refused(g.model(g.op("Mul", y, g.constant(5, 1, 1))))


def test_what_others_read_stays() -> None:
    g = Graph()
    y = g.op("Conv", g.input(2, 3, 4, 4), g.constant(6, 3, 1, 1))
    z = g.batch_norm(y, 6)
    refused(g.model(g.op("Add", z, y)))


def test_what_a_graph_returns_stays() -> None:
    g = Graph()
    y = g.op("Conv", g.input(2, 3, 4, 4), g.constant(6, 3, 1, 1))
    refused(g.model(y, g.batch_norm(y, 6)))


def test_an_output_in_the_middle_ends_the_chain() -> None:
    g = Graph()
    y = g.op("Conv", g.input(2, 3, 4, 4), g.constant(6, 3, 1, 1))
    z = g.batch_norm(y, 6)
    model = g.model(z, g.op("Mul", z, g.constant(6, 1, 1)))
    check(model, ["Conv", "Mul"])
    assert [v.name for v in rewritten(model)[0].graph.output] == [
        v.name for v in model.graph.output
    ]


def test_training_mode_stays() -> None:
    g = Graph()
    y = g.op("Conv", g.input(2, 3, 4, 4), g.constant(6, 3, 1, 1))
    z = g.batch_norm(y, 6, training_mode=1)
    g.nodes[-1].output.extend(["mean", "variance"])
    refused(g.model(z))


@pytest.mark.parametrize("index", [1, 2, 3, 4])
def test_inputs_that_vary_stay(index: int) -> None:
    g = Graph()
    y = g.op("Conv", g.input(2, 3, 4, 4), g.constant(6, 3, 1, 1))
    z = g.batch_norm(y, 6)
    g.nodes[-1].input[index] = g.input(6, name="varies")
    refused(g.model(z))


def test_a_weight_that_varies_stays() -> None:
    g = Graph()
    y = g.op("Conv", g.input(2, 3, 4, 4), g.input(6, 3, 1, 1, name="w"))
    refused(g.model(g.batch_norm(y, 6)), "weight is not constant")


def test_a_bias_that_varies_stays() -> None:
    g = Graph()
    y = g.op("Conv", g.input(2, 3, 4, 4), g.constant(6, 3, 1, 1), g.input(6, name="b"))
    refused(g.model(g.batch_norm(y, 6)), "bias is not constant")


@pytest.mark.parametrize(("limit", "left"), [(1 << 20, 0), (16, 1)])
def test_a_shared_weight_is_copied_within_the_limit(limit: int, left: int) -> None:
    g = Graph()
    x, w = g.input(2, 3, 4, 4), g.constant(6, 3, 3, 3)
    ends = [g.batch_norm(g.op("Conv", x, w), 6) for _ in range(2)]
    model = g.model(*ends)
    result = Pipeline((FoldAffineIntoConv(limit),)).run(ir.from_proto(model), RewriteOptions())
    made = ir.to_proto(result.model)
    # With no room for a copy nothing folds: both need their own weight.
    assert kinds(made).count("BatchNormalization") == 2 * left
    assert bool(result.log.misses) == bool(left)
    for got, want in zip(run(made, feeds_of(model)), run(model, feeds_of(model)), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


def test_a_dequantized_weight_stays_whole() -> None:
    g = Graph()
    x = g.input(2, 3, 4, 4)
    g.constants.append(numpy_helper.from_array(np.ones((6, 3, 1, 1), np.int8), "q"))
    w = g.op("DequantizeLinear", "q", g.constant())
    refused(g.model(g.batch_norm(g.op("Conv", x, w), 6)))


def test_half_precision_overflow_is_refused() -> None:
    g = Graph(np.float16)
    y = g.op("Conv", g.input(2, 3, 4, 4), g.data(np.full((6, 3, 1, 1), 300.0)))
    refused(g.model(g.op("Mul", y, g.data(300.0))), "would not fit")


def test_half_precision_underflow_is_refused() -> None:
    g = Graph(np.float16)
    y = g.op("Conv", g.input(2, 3, 4, 4), g.data(np.full((6, 3, 1, 1), 1e-3)))
    refused(g.model(g.op("Mul", y, g.data(1.1e-4))), "would not fit")


def test_float16_and_float64() -> None:
    for dtype in (np.float16, np.float64):
        g = Graph(dtype)
        y = g.op("Gemm", g.input(2, 3), g.constant(3, 6), g.constant(6))
        made, _ = rewritten(g.model(g.op("Mul", y, g.constant(6))))
        assert kinds(made) == ["Gemm"]
        (weight,) = (t for t in made.graph.initializer if t.name == made.graph.node[0].input[1])
        a, b = numpy_helper.to_array(g.constants[0]), numpy_helper.to_array(g.constants[2])
        want = (a.astype(np.float64) * b.astype(np.float64)).astype(dtype)
        np.testing.assert_array_equal(numpy_helper.to_array(weight), want)


# ---- before a convolution ----------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_before_a_convolution_without_padding(groups: int) -> None:
    g = Graph()
    x = g.batch_norm(g.input(2, 4, 9, 8), 4)
    y = g.op("Conv", x, g.constant(6, 4 // groups, 3, 2), g.constant(6), group=groups)
    check(g.model(y), ["Conv"])


def test_a_shift_before_padding_stays() -> None:
    g = Graph()
    x = g.batch_norm(g.input(2, 4, 9, 8), 4)
    refused(g.model(g.op("Conv", x, g.constant(6, 4, 3, 3), pads=[0, 0, 0, 1])), "padding")


def test_a_shift_before_automatic_padding_stays() -> None:
    g = Graph()
    x = g.op("Add", g.input(2, 4, 9, 8), g.constant(4, 1, 1))
    refused(g.model(g.op("Conv", x, g.constant(6, 4, 3, 3), auto_pad="SAME_UPPER")), "padding")


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_scale_before_padding_folds(kind: str, groups: int) -> None:
    g = Graph()
    x = g.op("Div", g.input(2, 4, 9, 8), g.constant(1, 4, 1, 1))
    w = g.kernel(kind, 4, 8, groups, 3, 3)
    check(g.model(g.op(kind, x, w, pads=[1, 1, 1, 1], group=groups)), [kind])


def test_the_scale_next_to_padding_folds_and_the_shift_stays() -> None:
    g = Graph()
    x = g.op("Mul", g.op("Add", g.input(2, 4, 9, 8), g.constant()), g.constant(4, 1, 1))
    check(g.model(g.op("Conv", x, g.constant(6, 4, 3, 3), pads=[1, 1, 1, 1])), ["Add", "Conv"])


def test_an_input_that_the_constant_widens_stays() -> None:
    g = Graph()
    x = g.op("Mul", g.input(2, 1, 9, 8), g.constant(4, 1, 1))
    refused(g.model(g.op("Conv", x, g.constant(6, 4, 3, 3))))


def test_a_widened_rank_stays() -> None:
    g = Graph()
    x = g.op("Mul", g.input(9, 8), g.constant(1, 4, 1, 1))
    refused(g.model(g.op("Conv", x, g.constant(6, 4, 3, 3))))


# ---- MatMul and Gemm ---------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), ("n", 3)])
@pytest.mark.parametrize("shape", [(5,), (1,), ()])
def test_arithmetic_after_matmul(batch: tuple[int | str, ...], shape: tuple[int, ...]) -> None:
    g = Graph()
    y = g.op("MatMul", g.input(*batch, 4), g.constant(4, 5))
    y = g.op("Mul", g.op("Add", g.constant(*shape), y), g.constant(*shape))
    check(g.model(y), ["MatMul", "Add"])


def test_batch_norm_around_matmul() -> None:
    g = Graph()
    y = g.op("MatMul", g.batch_norm(g.input("n", 4), 4), g.constant(4, 3))
    check(g.model(g.batch_norm(y, 3)), ["MatMul", "Add"])


def test_batch_norm_over_the_middle_axis_stays() -> None:
    g = Graph()
    y = g.op("MatMul", g.input(2, 5, 4), g.constant(4, 5))
    refused(g.model(g.batch_norm(y, 5)))


def test_a_shift_before_a_widening_matmul_stays() -> None:
    g = Graph()
    x = g.op("Add", g.input(2, 4), g.constant(4))
    refused(g.model(g.op("MatMul", x, g.constant(4, 64))), "wider")


def test_a_shift_before_a_widening_matmul_with_bias_folds() -> None:
    g = Graph()
    x = g.op("Sub", g.constant(4), g.input(2, 4))
    y = g.op("Add", g.op("MatMul", x, g.constant(4, 64)), g.constant(64))
    check(g.model(y), ["MatMul", "Add"])


def test_the_plain_linear_form_settles() -> None:
    g = Graph()
    y = g.op("Add", g.op("MatMul", g.input(2, 4), g.constant(4, 3)), g.constant(3))
    refused(g.model(y))


def test_attention_scale_goes_into_the_projection() -> None:
    g = Graph()
    y = g.op("Add", g.op("MatMul", g.input("n", 6, 4), g.constant(4, 8)), g.constant(8))
    g.constants.append(numpy_helper.from_array(np.array([0, 6, 2, 4]), "shape"))
    t = g.op("Transpose", g.op("Reshape", y, "shape"), perm=[0, 2, 1, 3])
    model = g.model(g.op("Mul", t, g.data(8**-0.5)))
    check(model, ["MatMul", "Add", "Reshape", "Transpose"])


def test_a_shift_beyond_layout_stays() -> None:
    g = Graph()
    y = g.op("MatMul", g.input("n", 6, 4), g.constant(4, 8))
    t = g.op("Transpose", y, perm=[0, 2, 1])
    refused(g.model(g.op("Add", t, g.constant())))


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (), (1,), (5,), (1, 5)])
@pytest.mark.parametrize("place", ["before", "after"])
def test_gemm(trans_b: int, bias: tuple[int, ...] | None, place: str) -> None:
    g = Graph()
    x = g.input(3, 4)
    if place == "before":
        x = g.batch_norm(x, 4)
    extra = () if bias is None else (g.constant(*bias),)
    shape = (5, 4) if trans_b else (4, 5)
    y = g.op("Gemm", x, g.constant(*shape), *extra, transB=trans_b, alpha=0.5, beta=2.0)
    if place == "after":
        y = g.op("Sub", g.batch_norm(y, 5), g.constant(1, 5))
    check(g.model(y), ["Gemm"])


def test_gemm_over_a_transposed_input() -> None:
    g = Graph()
    y = g.op("Gemm", g.op("Mul", g.input(4, 3), g.constant(3)), g.constant(4, 5), transA=1)
    check(g.model(g.op("Mul", y, g.constant(5))), ["Mul", "Gemm"])


def test_gemm_with_a_bias_per_row_stays() -> None:
    g = Graph()
    y = g.op("Gemm", g.input(3, 4), g.constant(4, 5), g.constant(3, 1))
    refused(g.model(g.op("Mul", y, g.constant(5))), "not one row")


def test_a_constant_left_operand_stays() -> None:
    g = Graph()
    y = g.op("MatMul", g.constant(5, 4), g.input(4, 5))
    refused(g.model(g.op("Mul", y, g.constant(5))))


def test_division_by_zero_stays() -> None:
    g = Graph()
    y = g.op("MatMul", g.input(2, 4), g.constant(4, 3))
    refused(g.model(g.op("Div", y, g.data([1, 0, 1]))))


@pytest.mark.parametrize("op", ["Mul", "Div"])
def test_a_factor_after_a_product_stays(op: str) -> None:
    g = Graph()
    x = g.input(2, 4)
    y = g.op("Add", g.op("Mul", g.op(op, x, g.op("Exp", x)), g.constant(4)), g.constant(4))
    refused(g.model(g.op("MatMul", y, g.constant(4, 4))), "activation")


@pytest.mark.parametrize("fuel", [0, 1, 2, 3])
def test_any_fuel_gives_the_same_numbers(fuel: int) -> None:
    g = Graph()
    y = g.op("Conv", g.batch_norm(g.input(2, 3, 4, 4), 3), g.constant(6, 3, 1, 1))
    y = g.op("Flatten", g.batch_norm(y, 6))
    model = g.model(g.op("Mul", g.op("Gemm", y, g.constant(96, 2)), g.constant(2)))
    result = Pipeline(PASSES).run(ir.from_proto(model), RewriteOptions(), fuel=fuel)
    assert len(result.log.hits) == fuel
    (got,), (want,) = (run(m, feeds_of(model)) for m in (ir.to_proto(result.model), model))
    np.testing.assert_allclose(got, want, rtol=1e-4)


def test_inside_a_function_constants_are_nodes() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[2, 3, 4, 4] x) => (float[2, 2, 4, 4] y) { y = own.block(x) }
    <domain: "own", opset_import: ["" : 17]>
    block (x) => (y) {
        w = Constant <value = float[2, 3, 1, 1] {1, 2, 3, 4, 5, 6}> ()
        c = Constant <value = float[2, 1, 1] {2, 3}> ()
        t = Conv(x, w)
        u = Mul(t, c)
        y = Add(u, c)
    }"""
    model = onnx.parser.parse_model(text)
    made, result = rewritten(model)
    assert result.modified
    assert "Mul" not in [node.op_type for node in made.functions[0].node]
    for got, want in zip(run(made, feeds_of(model)), run(model, feeds_of(model)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_inside_a_branch() -> None:
    g = Graph()
    x = g.input(2, 3, 4, 4)
    w, c = g.constant(6, 3, 1, 1), g.constant(6, 1, 1)
    text = f"then () => (float[a, b, c, d] t) {{ u = Conv({x}, {w}) t = Mul(u, {c}) }}"
    then = onnx.parser.parse_graph(text)
    other = onnx.parser.parse_graph(f"other () => (float[a, b, c, d] e) {{ e = Conv({x}, {w}) }}")
    g.constants.append(numpy_helper.from_array(np.array(True), "flag"))
    model = g.model(g.op("If", "flag", then_branch=then, else_branch=other))
    made, result = rewritten(model)
    assert len(result.log.hits) == 1
    for got, want in zip(run(made, feeds_of(model)), run(model, feeds_of(model)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_reader_in_a_branch_stays_there() -> None:
    g = Graph()
    y = g.op("Conv", g.input(2, 3, 4, 4), g.constant(6, 3, 1, 1))
    c = g.constant(6, 1, 1)
    then = onnx.parser.parse_graph(f"then () => (float[a, b, c, d] t) {{ t = Mul({y}, {c}) }}")
    other = onnx.parser.parse_graph(f"other () => (float[a, b, c, d] e) {{ e = Abs({c}) }}")
    g.constants.append(numpy_helper.from_array(np.array(True), "flag"))
    refused(g.model(g.op("If", "flag", then_branch=then, else_branch=other)))
