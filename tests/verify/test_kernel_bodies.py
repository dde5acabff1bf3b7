"""What of a body decides how its kernel is judged, and operators that onnx.reference lacks."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from ortkit.kernels.accuracy import is_number_for_nan, special_values_differ
from ortkit.verify.kernels.blocks import Operand
from ortkit.verify.kernels.bodies import pads_windows, value_types
from ortkit.verify.kernels.expected import Expected
from ortkit.verify.kernels.ops import OPS
from ortkit.verify.kernels.ops_blocks import rounded_as_allowed
from ortkit.verify.kernels.reference import Reference

HEAD = '<opset_import: ["" : 21]> f '


def function(text: str) -> onnx.FunctionProto:
    return onnx.parser.parse_function(HEAD + text)


@pytest.mark.parametrize(
    ("attributes", "is_padded"),
    [
        ("kernel_shape = [7, 7], strides = [2, 2]", True),
        ("kernel_shape = [4, 4], strides = [2, 2]", False),
        ("kernel_shape = [3, 3], strides = [1, 1]", False),
        ("kernel_shape = [2, 2], strides = [2, 2], dilations = [2, 2]", True),
        ("kernel_shape = [7, 8], strides = [1, 4]", False),
    ],
)
def test_windows_that_space_to_depth_pads(attributes: str, is_padded: bool) -> None:
    assert pads_windows(function(f"(x, w) => (y) {{ y = Conv<{attributes}>(x, w) }}")) == is_padded


def test_types_of_onnx_runtimes_own_operators_are_known() -> None:
    """A body whose result has no type would never be compared in half precision."""
    function = onnx.parser.parse_function(
        """<domain: "d", opset_import: ["" : 20, "com.microsoft" : 1]>
        f (x, w, s) => (y) {
            p = com.microsoft.MatMulNBits <K = 32, N = 8, bits = 4, block_size = 32> (x, w, s)
            g = Sigmoid (p)
            y = Mul (p, g)
        }"""
    )
    types = value_types(function, [10, 2, 10])
    assert {name: types[name].name for name in "pgy"} == dict.fromkeys("pgy", "float16")


def test_kinds_are_found_in_the_middle_of_a_name() -> None:
    differ = ("attention", "cast_attention_cast", "bias_attention", "max_pool_relu")
    kinds = dict.fromkeys(differ, True) | dict.fromkeys(("attentions", "product", "conv"), False)
    assert {kind: special_values_differ(f"{kind}_0123456789ab") for kind in kinds} == kinds
    assert is_number_for_nan("cast_attention_cast_0123456789ab")
    assert not is_number_for_nan("softmax_0123456789ab")


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_number_where_the_body_divides_nothing_by_nothing(is_allowed: bool) -> None:
    body = Reference(function("(x) => (y) { y = Softmax(x) }"))
    x = np.array([[-np.inf, -np.inf], [0.0, 0.0]], np.float32)
    with np.errstate(all="ignore"):
        (known,) = body([x.astype(np.float64)])
    expected = Expected(body, [Operand(x)], [known.astype(np.float32)],
                        is_number_for_nan=is_allowed)  # fmt: skip
    got = np.array([[0.25, 0.25], [0.5, 0.5]], np.float32)
    (found,) = expected.judge([got], 1.0)
    assert (found.reason == "") == is_allowed
    got[1, 0] = 0.75
    (found,) = expected.judge([got], 1.0)
    assert found.reason


@pytest.mark.parametrize(("opset", "scales"), [(18, 2), (21, 6)])
def test_group_normalization_is_the_one_of_onnx(opset: int, scales: int) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : {opset}]>
        g (float[2, 6, 3, 5] x, float[{scales}] s, float[{scales}] b) => (float[2, 6, 3, 5] y)
        {{ y = GroupNormalization<num_groups = 2, epsilon = 0.01>(x, s, b) }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(3, 2, (2, 6, 3, 5)), "s": rng.normal(size=scales),
             "b": rng.normal(size=scales)}  # fmt: skip
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    session = onnxruntime.InferenceSession(model.SerializeToString(),
                                           providers=["CPUExecutionProvider"])  # fmt: skip
    (want,) = session.run(None, feeds)
    wide = {name: array.astype(np.float64) for name, array in feeds.items()}
    (got,) = ReferenceEvaluator(model, new_ops=list(OPS)).run(None, wide)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_gelu_far_below_zero_is_no_zero() -> None:
    """-10 times the share of a normal distribution below -10, as tables have it."""
    text = '<ir_version: 10, opset_import: ["" : 20]> g (double[n] x) => (double[n] y) {'
    model = onnx.parser.parse_model(text + " y = Gelu(x) }")
    (found,) = ReferenceEvaluator(model, new_ops=list(OPS)).run(
        None, {"x": np.array([-10.0, -np.inf, 3.0])}
    )
    assert found[0] == pytest.approx(-10 * 7.619853024160527e-24, rel=1e-9, abs=0)
    assert found[2] == pytest.approx(3 * 0.9986501019683699, rel=1e-12)


def test_the_logarithm_of_no_exponentials() -> None:
    text = '<ir_version: 10, opset_import: ["" : 18]> g (double[n] x) => (double[1] y) {'
    model = onnx.parser.parse_model(text + " y = ReduceLogSumExp(x) }")
    run = ReferenceEvaluator(model, new_ops=list(OPS)).run
    with np.errstate(divide="ignore", invalid="ignore"):
        (nothing,) = run(None, {"x": np.zeros(0)})
    (some,) = run(None, {"x": np.array([1000.0, 1000.0])})
    assert nothing.tolist() == [-np.inf]
    assert some.tolist() == pytest.approx([1000 + np.log(2)])


@pytest.mark.parametrize("opset", [10, 13, 18, 19, 21, 23])
@pytest.mark.parametrize("shape", [(), (5,), (4, 2, 3)])
def test_dequantized_numbers_are_those_of_onnx_runtime(opset: int, shape: tuple[int, ...]) -> None:
    """By one scale, by one of each slice, and by one of each block of three slices."""
    if (shape == (5,) and opset < 13) or (len(shape) == 3 and opset < 21):
        pytest.skip("an older version has no scales of this shape")
    random = np.random.default_rng(opset)
    given = [
        random.integers(-128, 128, (4, 5, 3), dtype=np.int8),
        np.asarray(random.random(shape) + 0.1, np.float32),
        np.asarray(random.integers(-9, 9, shape), np.int8),
    ]
    attributes = {} if opset < 13 else {"axis": -2}
    if len(shape) == 3:
        attributes["block_size"] = 3
    kinds = (onnx.TensorProto.INT8, onnx.TensorProto.FLOAT, onnx.TensorProto.INT8)
    nodes = [onnx.helper.make_node("DequantizeLinear", list("xsz"), ["y"], **attributes)]
    opsets = [onnx.helper.make_opsetid("", opset)]
    body = onnx.helper.make_function("d", "f", list("xsz"), ["y"], nodes, opsets)
    (got,) = Reference(body)([given[0], given[1].astype(np.float64), given[2]])
    graph = onnx.helper.make_graph(
        nodes, "g",
        [onnx.helper.make_tensor_value_info(name, kind, x.shape)
         for name, kind, x in zip("xsz", kinds, given, strict=True)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 5, 3])],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(),
                                           providers=["CPUExecutionProvider"])  # fmt: skip
    (want,) = session.run(None, dict(zip("xsz", given, strict=True)))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=1e-6)


# ---- products with weights of a few bits
def blocked(bits: int, level: int, operands: str = "x, w, s") -> onnx.FunctionProto:
    return onnx.parser.parse_function(f"""
        <opset_import: ["" : 21, "com.microsoft" : 1]> f (x, w, s, z, b) => (y) {{
            y = com.microsoft.MatMulNBits <K = 96, N = 16, bits = {bits}, block_size = 32,
                accuracy_level = {level}> ({operands}) }}""")


def blocked_inputs(bits: int, rows: int = 5) -> list[np.ndarray]:
    rng = np.random.default_rng(bits)
    return [
        rng.normal(size=(rows, 96)).astype(np.float32),
        rng.integers(0, 256, (16, 3, 4 * bits), dtype=np.uint8),
        rng.normal(size=48).astype(np.float32),
        rng.integers(0, 256, 16 * -(-3 * bits // 8), dtype=np.uint8),
        rng.normal(size=16).astype(np.float32),
    ]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("operands", ["x, w, s", "x, w, s, z", "x, w, s, z, , b"])
def test_weights_of_a_few_bits_are_those_of_onnx_runtime(bits: int, operands: str) -> None:
    body, given = blocked(bits, 0, operands), blocked_inputs(bits)
    (got,) = Reference(body)([x.astype(np.float64) if x.dtype.kind == "f" else x for x in given])
    types = ["FLOAT", "UINT8", "FLOAT", "UINT8", "FLOAT"]
    inputs = [
        onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), x.shape)
        for name, kind, x in zip("xwszb", types, given, strict=True)
    ]
    outputs = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [5, 16])]
    graph = onnx.helper.make_graph(body.node, "g", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=body.opset_import, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(),
                                           providers=["CPUExecutionProvider"])  # fmt: skip
    (want,) = session.run(None, dict(zip("xwszb", given, strict=True)))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


INT8 = ["Shape", "Reshape", "Abs", "ReduceMax", "Max", "Div", "Div", "Round", "Mul", "Reshape"]


@pytest.mark.parametrize(("level", "added"), [(0, []), (1, []), (3, ["Cast", "Cast"]), (4, INT8)])
def test_an_operand_is_rounded_where_its_accuracy_level_allows_it(
    level: int, added: list[str]
) -> None:
    body, given = blocked(4, level), blocked_inputs(4)
    rounded = rounded_as_allowed(body)
    kinds = [node.op_type for node in rounded.node if node.op_type != "Constant"]
    assert kinds == [*added, "MatMulNBits"]
    wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in given]
    reference = Reference(body)
    (exact,), (moved,) = reference(wide), reference.moved(wide, 1.0, 0)
    part = np.abs(moved - exact).max() / np.abs(exact).max()
    assert (2.0**-10 < part < 2.0**-5) if added else part < 2.0**-20


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_blocks_are_rounded_to_int8(opset: int) -> None:
    body, (x, *weights) = blocked(4, 4), blocked_inputs(4)
    body.opset_import[0].version = opset
    x[0, :32] = 0
    rounded = rounded_as_allowed(body)
    del rounded.node[-1:]
    rounded.output[0] = "y/rounded"
    run = ReferenceEvaluator(rounded)
    (got,) = run.run(None, dict(zip("xwszb", [x, *weights], strict=True)), attributes={})
    blocks = x.reshape(-1, 32)
    scale = np.maximum(np.abs(blocks).max(-1, keepdims=True), 1e-30) / 127
    np.testing.assert_allclose(got, (np.round(blocks / scale) * scale).reshape(x.shape), rtol=1e-6)


@pytest.mark.parametrize("zeros", ["none", "numbers", "rows and columns"])
def test_products_of_bytes_are_exact_and_wrap_around(zeros: str) -> None:
    random = np.random.default_rng(3)
    a = random.integers(0, 256, (2, 3, 80_000), dtype=np.uint8)
    b = random.integers(-128, 128, (80_000, 5), dtype=np.int8)
    a[0, 0], b[:, 0] = 255, 127  # 80,000 times 255 by 127 is more than int32 has
    shapes = {"none": (), "numbers": ((), ()), "rows and columns": ((3,), (5,))}[zeros]
    given = [random.integers(0, 9, shape).astype(np.uint8) for shape in shapes]
    given[1:] = [zero.astype(np.int8) for zero in given[1:]]
    names = ", ".join("abzk"[: 2 + len(given)])
    body = function(f"({names}) => (y) {{ y = MatMulInteger({names}) }}")
    (found,) = ReferenceEvaluator(body, new_ops=list(OPS)).run(
        None, dict(zip("abzk", (a, b, *given), strict=False)), attributes={}
    )
    whole = [a.astype(np.int64), b.astype(np.int64)]
    if given:
        whole = [whole[0] - given[0][..., None], whole[1] - given[1]]
    wanted = whole[0] @ whole[1]
    assert abs(wanted).max() > np.iinfo(np.int32).max
    np.testing.assert_array_equal(found, wanted.astype(np.int32))
