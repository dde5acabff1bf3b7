"""Operators on int8 beside the same on uint8, in ONNX Runtime: the same numbers."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from ortkit.passes.unsign_operators import UnsignOperators
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline, PipelineResult
from ortkit.targets.target import Target

#: Between the quantized image `q` [1, 4, 6, 6] and the quantized image `r`, with 4 channels.
STEPS = {
    "add": "r = com.microsoft.QLinearAdd(q, s, z, k, t, v, s, u)",
    "multiply": "r = com.microsoft.QLinearMul(q, s, z, q, s, z, s, u)",
    "average": "r = com.microsoft.QLinearAveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"
    "(q, s, z, s, u)",
    "averages with pads": "r = com.microsoft.QLinearAveragePool<kernel_shape = [2, 2], "
    "pads = [1, 0, 1, 0], count_include_pad = 1>(q, s, z, s, u)",
    "mean": "r = com.microsoft.QLinearGlobalAveragePool(q, s, z, s, u)",
    "leaky": "r = com.microsoft.QLinearLeakyRelu<alpha = 0.1>(q, s, z, s, u)",
    "sigmoid": "r = com.microsoft.QLinearSigmoid(q, s, z, t, u)",
    "softmax": "r = com.microsoft.QLinearSoftmax<axis = 3, opset = 13>(q, s, z, t, u)",
    "joined": "r = com.microsoft.QLinearConcat<axis = 2>(s, u, q, s, z, h, t, v)",
    "where": "o = Greater(x, zero) r = com.microsoft.QLinearWhere(o, q, s, z, k, t, v, s, u)",
    "strides": "r = QLinearConv<strides = [2, 2], pads = [1, 1, 0, 0], group = 2>"
    "(q, s, z, w, t, v, s, u)",
    "pool": "r = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(q)",
    "pad": "r = Pad(q, pads, z)",
    "mirror": 'r = Pad<mode = "reflect">(q, pads)',
    "moved": "a, b = Split<axis = 2>(q) c = Transpose<perm = [0, 1, 3, 2]>(b) "
    "d = Transpose<perm = [0, 1, 3, 2]>(c) r = Concat<axis = 2>(d, a, h)",
    "resized": 'r = Resize<mode = "nearest">(q, , scales)',
    "gathered": "a = Gather<axis = 3>(q, at) r = Identity(a)",
}


def random_bytes(shape: tuple[int, ...], most: int) -> np.ndarray:
    return np.random.default_rng(most).integers(-most, most, shape, np.int8, endpoint=True)


CONSTANTS = {
    "s": np.float32(0.04), "t": np.float32(0.01), "zero": np.float32(0), "z": np.int8(-5),
    "u": np.int8(21), "v": np.int8(0), "pads": np.array([0, 0, 1, 0, 0, 0, 0, 2]),
    "at": np.array([5, 1]), "scales": np.array([1, 1, 2, 1.5], np.float32),
    "zeros": np.zeros(8, np.float32), "h": random_bytes((1, 4, 2, 6), 127),
    "k": random_bytes((4, 1, 1), 126),
    "w": random_bytes((4, 2, 3, 3), 64), "m": random_bytes((4, 4, 1, 1), 63),
}  # fmt: skip


def network(step: str) -> onnx.ModelProto:
    """A step between bytes and a convolution of 1x1, with weights of 7 bits."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[1, 4, 6, 6] x) => (float[a, b, c, d] y) {{
          q = QuantizeLinear(x, s, z)
          {step}
          l = QLinearConv(r, s, u, m, t, v, s, z)
          y = DequantizeLinear(l, s, z)
        }}""")
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(data), name) for name, data in CONSTANTS.items()
    )
    return model


def rewritten(model: onnx.ModelProto, level: str) -> PipelineResult:
    options = RewriteOptions(Target("cpu", level), 2)
    return Pipeline((UnsignOperators(),)).run(ir.from_proto(model), options)


def results(model: onnx.ModelProto) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(3)
    feeds = [random.standard_normal((1, 4, 6, 6), np.float32) * factor for factor in (0, 1, 2, 9)]
    return [session.run(None, {"x": each})[0] for each in feeds]


@pytest.mark.parametrize("name", STEPS)
def test_the_same_numbers(name: str) -> None:
    model = network(STEPS[name])
    result = rewritten(model, "x86-64-v3")
    assert len(result.log.hits) == 1, result.log.misses
    made = ir.to_proto(result.model)
    types = {value.name: value.type.tensor_type.elem_type for value in made.graph.value_info}
    written = {types[name] for node in made.graph.node for name in node.output if name in types}
    assert onnx.TensorProto.UINT8 in written
    assert onnx.TensorProto.INT8 not in written
    for got, want in zip(results(made), results(model), strict=True):
        # A mean of a window that is a tie may fall to the other number.
        most = 1.01 * CONSTANTS["s"] if name.startswith("average") else 0.0
        np.testing.assert_allclose(got, want, rtol=0, atol=most)
        assert (got != want).mean() <= 0.1


REFUSED = {
    "means of numbers": ("r = ReduceMax<axes = [3]>(q)", "read otherwise: ReduceMax"),
    "indices of the largest": (
        "r, i = MaxPool<kernel_shape = [2, 2]>(q) j = Cast<to = 6>(i)", "read otherwise: MaxPool",
    ),
    "interpolated": ('r = Resize<mode = "linear">(q, , scales)', "read otherwise: Resize"),
    "cropped": (
        'r = Resize<coordinate_transformation_mode = "tf_crop_and_resize">(q, zeros, scales)',
        "read otherwise: Resize",
    ),
    "a zero point that is computed": (
        "i = Size(x) n = Cast<to = 3>(i) r = com.microsoft.QLinearSigmoid(q, s, n, s, u)",
        "read otherwise: Cast",
    ),
    "numbers of two types": (
        "i = QuantizeLinear(x, s) r = Identity(q) "
        "j = com.microsoft.QLinearAdd(i, s, , q, s, z, s, )",
        "of several types: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_alone(name: str) -> None:
    step, reason = REFUSED[name]
    result = rewritten(network(step), "x86-64-v4-bf16")
    assert not result.log.hits
    assert any(reason in miss.reason for miss in result.log.misses), result.log.misses


@pytest.mark.parametrize(
    ("level", "is_done"),
    [
        ("x86-64-v3", False),
        ("x86-64-v4", False),
        ("x86-64-v4-vnni", True),
        ("x86-64-v4-amx", True),
        ("aarch64", False),
    ],
)
def test_weights_of_eight_bits(level: str, is_done: bool) -> None:
    model = network("r = Identity(q)")
    (weights,) = [each for each in model.graph.initializer if each.name == "m"]
    weights.CopyFrom(numpy_helper.from_array(random_bytes((4, 4, 1, 1), 127), "m"))
    assert bool(rewritten(model, level).log.hits) == is_done
