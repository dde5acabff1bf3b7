"""Products of eight-bit floats become regions on CUDA, with what rounds their rows."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from ortkit.custom_ops.triton.gemm.fp8 import ANCHOR
from region_models import found_by, scope_of

from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.lower import drop_unread, lower_region, restore_order
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope

WIDTH, INNER = 32, 48
#: Rows in eight bits by a factor a row, of t: t/q of them and t/x what they are worth.
BY_ROW = (
    "{0}/a = Cast<to=1>({0})", "{0}/b = Abs({0}/a)", "{0}/m = ReduceMax<keepdims=1>({0}/b, last)",
    "{0}/p = Mul({0}/m, part)", "{0}/f = Max({0}/p, least)", "{0}/d = Div({0}/a, {0}/f)",
    "{0}/q = Cast<to=17>({0}/d)", "{0}/w = Cast<to=1>({0}/q)", "{0}/v = Mul({0}/w, {0}/f)",
    "{0}/x = Cast<to=10>({0}/v)",
)  # fmt: skip
#: The same with one factor.
BY_ONE = ("{0}/q = QuantizeLinear({0}, one, zero)", "{0}/x = DequantizeLinear({0}/q, one, zero)")
#: The same in float32, as `--precision fp8` writes it.
BY_NUMBER = (
    "{0}/a = Cast<to=1>({0})", "{0}/d = Div({0}/a, number)", "{0}/q = Cast<to=17>({0}/d)",
    "{0}/w = Cast<to=1>({0}/q)", "{0}/v = Mul({0}/w, number)", "{0}/x = Cast<to=10>({0}/v)",
)  # fmt: skip
NORM = "n = LayerNormalization<axis=-1>(x, g)"
UP, DOWN = "U = DequantizeLinear<axis=1>(u, us)", "D = DequantizeLinear<axis=1>(d, ds)"
GATE = "V = DequantizeLinear<axis=1>(v, us)"


def model_of(lines: list[str], rows: tuple[int, ...], dtype: type = np.float16) -> onnx.ModelProto:
    """y by lines of one node each, of x and constants.

    u and v [WIDTH, INNER], d [INNER, WIDTH] and t [INNER, WIDTH], turned, in eight bits, us and ds
    the factors of their columns, one and two of all, zero and off their zero points; wide [WIDTH,
    INNER] and turned [INNER, WIDTH] in half precision; b [INNER], g [WIDTH].
    """
    rng = np.random.default_rng(4)
    held = []

    def hold(name: str, array: np.ndarray) -> None:
        tensor = numpy_helper.from_array(array)
        tensor.name = name
        held.append(tensor)

    for name, shape in (("u", (WIDTH, INNER)), ("v", (WIDTH, INNER)), ("d", (INNER, WIDTH)),
                        ("t", (INNER, WIDTH))):  # fmt: skip
        numbers = (rng.standard_normal(shape) * 90).astype(np.float32)
        hold(name, numbers.astype(ml_dtypes.float8_e4m3fn))
    hold("us", ((1 + rng.random(INNER)) / 700).astype(dtype))
    hold("ds", ((1 + rng.random(WIDTH)) / 700).astype(dtype))
    hold("wide", (rng.standard_normal((WIDTH, INNER)) / 6).astype(dtype))
    hold("turned", (rng.standard_normal((INNER, WIDTH)) / 6).astype(dtype))
    hold("b", rng.standard_normal(INNER).astype(dtype))
    hold("g", (1 + rng.random(WIDTH)).astype(dtype))
    hold("one", np.array(1 / 64, dtype))
    hold("two", np.array(1 / 16, dtype))
    hold("zero", np.array(0, ml_dtypes.float8_e4m3fn))
    hold("off", np.array(1, ml_dtypes.float8_e4m3fn))
    hold("last", np.array([-1], np.int64))
    hold("part", np.array(1 / 448, np.float32))
    hold("least", np.array(1e-30, np.float32))
    hold("number", np.array(1 / 32, np.float32))
    nodes = [onnx.parser.parse_node(_quoted(line)) for line in lines]
    _unquoted(nodes)
    read = {name for node in nodes for name in node.input}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    infos = [helper.make_tensor_value_info("x", kind, (*rows, WIDTH))]
    outs = [helper.make_tensor_value_info("y", kind, None)]
    graph = helper.make_graph(
        nodes, "g", infos, outs, [item for item in held if item.name in read]
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def _quoted(line: str) -> str:
    return line.replace("/", "__")


def _unquoted(nodes: list[onnx.NodeProto]) -> None:
    for node in nodes:
        node.input[:] = [name.replace("__", "/") for name in node.input]
        node.output[:] = [name.replace("__", "/") for name in node.output]


def has_kernel(signature: RegionSignature) -> Refused | None:
    """Let those be taken that there is a kernel for."""
    onnx.checker.check_function(signature.function())
    found = template_for(signature)
    return found if isinstance(found, Refused) else None if found else Refused("none")


def found_in(scope: Scope) -> list[Candidate]:
    return found_by(ANCHOR, scope, has_kernel)


def by(how: tuple[str, ...], value: str) -> list[str]:
    """Return the lines that round a value."""
    return [line.format(value) for line in how]


BIASED = ["h = MatMul(n, U)", "i = Add(h, b)", "y = Relu(i)"]
#: Lines, rows, and the kinds and numbers of nodes of the regions.
TAKEN = {
    "a row with its norm": ([NORM, UP, *BIASED], (1, 1), {("product", 4)}),
    "a row, gated": (
        [UP, GATE, "h = MatMul(x, U)", "i = MatMul(x, V)", "j = Sigmoid(h)", "y = Mul(i, j)"],
        (1,), {("product", 4)},
    ),
    "few rows, their norm apart": ([NORM, UP, *BIASED], (9,), {("product", 3)}),
    "few rows": ([UP, "y = MatMul(x, U)"], (2, 3), {("product", 1)}),
    "a row and a transposed matrix": (
        ["T = DequantizeLinear<axis=0>(t, us)", "y = Gemm<transB=1>(x, T, b)"], (1,),
        {("product", 1)},
    ),
    "a row and a matrix with one factor": (
        ["U = DequantizeLinear(u, one, zero)", "y = MatMul(x, U)"], (1, 1), {("product", 1)},
    ),
    "a matrix that is rounded in the model": (
        ["w = QuantizeLinear<axis=1>(wide, us)".replace("us)", "us, zeros)"),
         "W = DequantizeLinear<axis=1>(w, us)", "y = MatMul(x, W)"], (1, 1), {("product", 1)},
    ),
    "a transposed matrix that is rounded in the model": (
        ["w = QuantizeLinear<axis=0>(turned, us, zeros)", "W = DequantizeLinear<axis=0>(w, us)",
         "y = Gemm<transB=1>(x, W, b)"], (1,), {("product", 1)},
    ),
    "rows by a factor each": (
        [NORM, *by(BY_ROW, "n"), UP, "h = MatMul(n/x, U)", "y = Relu(h)"], (2, 5),
        {("product", 2), ("rounded_rows", 8)},
    ),
    "rows of two products": (
        [*by(BY_ROW, "x"), UP, GATE, "h = MatMul(x/x, U)", "i = MatMul(x/x, V)", "j = Relu(h)",
         "k = Tanh(i)", "l = Concat<axis=-1>(j, k)", "y = Relu(l)"], (7,),
        {("product", 2), ("rounded_rows", 7)},
    ),
    "two layers by one factor": (
        [NORM, *by(BY_ONE, "n"), UP, "h = MatMul(n/x, U)", "i = Relu(h)",
         "i/q = QuantizeLinear(i, two, zero)", "i/x = DequantizeLinear(i/q, two, zero)", DOWN,
         "j = MatMul(i/x, D)", "y = Add(j, x)"], (2, 5),
        {("product", 3), ("product", 2), ("rounded_rows", 2)},
    ),
    "two layers by one number": (
        [NORM, *by(BY_NUMBER, "n"), UP, "h = MatMul(n/x, U)", "i = Relu(h)", *by(BY_NUMBER, "i"),
         DOWN, "j = MatMul(i/x, D)", "y = Add(j, x)"], (2, 5),
        {("product", 5), ("product", 2), ("rounded_rows", 4)},
    ),
    "a norm that others read": (
        [NORM, *by(BY_NUMBER, "n"), UP, "h = MatMul(n/x, U)", "i = Relu(h)", *by(BY_NUMBER, "i"),
         DOWN, "j = MatMul(i/x, D)", "y = Add(j, n)"], (2, 5),
        {("product", 5), ("product", 2), ("rounded_rows", 4)},
    ),
    "rows that others read before they are rounded": (
        [*by(BY_NUMBER, "x"), UP, "h = MatMul(x/x, U)", "i = Relu(h)", *by(BY_NUMBER, "i"),
         DOWN, "j = MatMul(i/x, D)", "k = ReduceSum(i, last)", "y = Add(j, k)"], (2, 5),
        {("product", 2), ("product", 1), ("rounded_rows", 3)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken_computes_the_same(name: str) -> None:
    lines, rows, kinds = TAKEN[name]
    proto = prepared(lines, rows)
    scope = scope_of(ir.from_proto(proto), kind="cuda")
    found = found_in(scope)
    regions = [item.region for item in found if item.signature is not None]
    assert {(region.kind, len(region.nodes)) for region in regions} == kinds, [
        one.reason for one in found
    ]
    replaced: dict[ir.Value, ir.Value] = {}
    for one in found:
        if one.signature is not None:
            assert lower_region(scope, one.region, one.signature, replaced)
    restore_order(scope)
    drop_unread(scope)
    after = ir.to_proto(scope.model)
    onnx.checker.check_model(after)
    left = Counter(node.op_type for node in after.graph.node)
    # What widened matrices and rows is gone with the products, and what only that read.
    assert {one.name for one in after.graph.initializer} <= {
        name for node in after.graph.node for name in node.input
    }
    assert not {"MatMul", "Gemm", "DequantizeLinear", "QuantizeLinear", "Cast"} & set(left), left
    x = np.random.default_rng(7).standard_normal((*rows, WIDTH)).astype(np.float16)
    want, got = (
        ort.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            ["y"], {"x": x}
        )[0]
        for one in (proto, after)
    )
    assert np.abs(want).max() > 0.1
    np.testing.assert_array_equal(got, want)


def prepared(lines: list[str], rows: tuple[int, ...]) -> onnx.ModelProto:
    """Return the model; zeros are zero points by column."""
    proto = model_of(lines, rows)
    if any("zeros" in node.input for node in proto.graph.node):
        zeros = numpy_helper.from_array(np.zeros(INNER, ml_dtypes.float8_e4m3fn), "zeros")
        proto.graph.initializer.append(zeros)
    return onnx.shape_inference.infer_shapes(proto)


LEFT = {
    "many rows in half precision": ([UP, "y = MatMul(x, U)"], (17,), "no faster"),
    "a zero point": (
        ["U = DequantizeLinear(u, one, off)", "y = MatMul(x, U)"], (1, 1), None
    ),
    "factors along the depth": (
        ["T = DequantizeLinear<axis=1>(t, ds)", "y = Gemm<transB=1>(x, T)"], (1,), None
    ),
    "a matrix in half precision": (["y = MatMul(x, wide)"], (1, 1), None),
    "a factor behind": (
        ["T = DequantizeLinear<axis=0>(t, us)", "y = Gemm<transB=1, alpha=2.0>(x, T)"], (1,),
        "factors",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name: str) -> None:
    lines, rows, reason = LEFT[name]
    found = found_in(scope_of(ir.from_proto(prepared(lines, rows)), kind="cuda"))
    assert not [item for item in found if item.signature is not None]
    assert [one.reason for one in found if reason and reason in one.reason] or reason is None


def test_the_matrix_is_held_once() -> None:
    lines = [UP, "h = MatMul(x, U)", "i = MatMul(x, U)", "j = Relu(h)", "k = Tanh(i)",
             "y = Concat<axis=-1>(j, k)"]  # fmt: skip
    scope = scope_of(ir.from_proto(prepared(lines, (1, 1))), kind="cuda")
    found = [item for item in found_in(scope) if item.signature is not None]
    assert len(found) == 2
    matrices = {
        id(value) for one in found for value in one.region.inputs
        if value.dtype == ir.DataType.FLOAT8E4M3FN
    }  # fmt: skip
    assert len(matrices) == 1
