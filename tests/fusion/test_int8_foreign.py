"""Graphs in QDQ format as NNCF, ModelOpt and neural-compressor write them become int8 kernels."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import ortkit
from tests.exact_sums import exact

pytestmark = pytest.mark.usefixtures("int8_level")


def model_of(text: str) -> onnx.ModelProto:
    """The model of a graph, with numbers for each initializer that is declared without.

    int8 is drawn evenly, float32 of one number is a scale, and others are normal.
    """
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{text}')
    random = np.random.default_rng(3)
    for value in list(model.graph.value_info):
        sizes = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        kind = value.type.tensor_type.elem_type
        array = random.standard_normal(sizes).astype(np.float32)
        if kind == onnx.TensorProto.INT8:
            array = random.integers(-127, 128, sizes).astype(np.int8)
        elif value.name.endswith("_scale"):
            array = random.uniform(0.01, 0.02, sizes).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    del model.graph.value_info[:]
    return model


def kinds_of(made: ortkit.Optimized) -> list[str]:
    """The operators of a model; fused ones by kind."""
    names = [node.op_type for node in made.model.graph]
    return sorted(re.sub("_[0-9a-f]{12}$", "", name) for name in names)


def optimized(source: onnx.ModelProto) -> ortkit.Optimized:
    """The model with kernels, unverified, as results may be one step off."""
    return ortkit.optimize(source, ortkit.OptimizeOptions(verify=False, check_load=False))


def off(source: onnx.ModelProto, made: ortkit.Optimized, folder: Path, step: float) -> np.ndarray:
    """How many steps results are away from those of ONNX Runtime."""
    given = source.graph.input[0]
    sizes = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    feeds = {given.name: np.random.default_rng(7).standard_normal(sizes).astype(np.float32)}
    made.save(folder / "made.onnx")
    after = next(iter(ortkit.Session(folder / "made.onnx").run(feeds).values()))
    before = ort.InferenceSession(
        exact(source).SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, feeds)[0]
    assert np.unique(before).size > 20
    return np.abs(np.asarray(after) - before) / step


CHANNELS = """g (float[1, 24, 14, 14] x) => (float[1, 32, SIZE, SIZE] y)
<float xs = {0.03}, int8 z = {0}, int8[32, 24, 1, 1] w, float[32] w_scale, int8[32] wz = {ZEROS},
 float[32] b, float[32] c_scale, int8[32] cz = {MIDDLES}, int8[32, 1, 3, 3] v, float[32] v_scale,
 float[32] d, float ys = {0.05}> {
  xq = QuantizeLinear(x, xs, z)
  xf = DequantizeLinear(xq, xs, z)
  wf = DequantizeLinear<axis = 0>(w, w_scale, wz)
  c = Conv(xf, wf, b)
  s = Sigmoid(c)
  m = Mul(c, s)
  mq = QuantizeLinear<axis = 1>(m, c_scale, cz)
  mf = DequantizeLinear<axis = 1>(mq, c_scale, cz)
  vf = DequantizeLinear<axis = 0>(v, v_scale, wz)
  e = Conv<group = 32, kernel_shape = [3, 3], pads = [PADS]>(mf, vf, d)
  q = QuantizeLinear(e, ys, z)
  y = DequantizeLinear(q, ys, z)
}"""


@pytest.mark.parametrize("middles", ["one", "each"])
def test_a_grid_for_each_channel_in_front_of_a_depthwise_convolution(
    middles: str, tmp_path: Path
) -> None:
    """NNCF: symmetric ones are alike in all channels; others have pads nowhere."""
    zeros = [0] * 32 if middles == "one" else [channel - 16 for channel in range(32)]
    pads, size = ("1, 1, 1, 1", 14) if middles == "one" else ("0, 0, 0, 0", 12)
    text = CHANNELS.replace("ZEROS", ", ".join(["0"] * 32)).replace("SIZE", str(size))
    text = text.replace("MIDDLES", ", ".join(map(str, zeros))).replace("PADS", pads)
    source = model_of(text)
    made = optimized(source)
    kinds = kinds_of(made)
    assert kinds.count("int8_conv") == 2
    assert not {"Conv", "Sigmoid", "Mul"} & set(kinds)
    steps = off(source, made, tmp_path, 0.05)
    # ONNX Runtime's convolutions are of float32 here: what lies halfway may be the next number.
    assert steps.max() < 1.5
    assert (steps > 0.5).mean() < 2e-3


def test_pads_of_channels_with_another_zero_each_are_named_as_the_reason() -> None:
    zeros = ", ".join(str(channel - 16) for channel in range(32))
    text = CHANNELS.replace("ZEROS", ", ".join(["0"] * 32)).replace("SIZE", "14")
    source = model_of(text.replace("MIDDLES", zeros).replace("PADS", "1, 1, 1, 1"))
    reasons = {miss.reason for miss in optimized(source).report.misses}
    assert "it has pads, and its activations another zero in each channel" in reasons


RESIDUAL = """g (float[1, 32, 14, 14] x) => (float[1, 64, 14, 14] y)
<float xs = {0.03}, int8 z = {0}, int8[64, 32, 1, 1] w, float[64] w_scale, int8[64] wz = {ZEROS},
 float[64] b, float ss = {0.06}, int8[64, 32, 3, 3] v, float[64] v_scale, float[64] d,
 float ys = {0.2}> {
  xq = QuantizeLinear(x, xs, z)
  xf = DequantizeLinear(xq, xs, z)
  wf = DequantizeLinear<axis = 0>(w, w_scale, wz)
  s = Conv(xf, wf, b)
  sq = QuantizeLinear(s, ss, z)
  sf = DequantizeLinear(sq, ss, z)
  vf = DequantizeLinear<axis = 0>(v, v_scale, wz)
  c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(xf, vf, d)
  a = Add(c, sf)
  r = Relu(a)
  q = QuantizeLinear(r, ys, z)
  y = DequantizeLinear(q, ys, z)
}"""


@pytest.mark.parametrize("operands", ["c, sf", "sf, c"])
def test_a_residual_in_bytes_beside_one_in_float32(operands: str, tmp_path: Path) -> None:
    """ModelOpt quantizes one operand of a sum: the kernel reads its bytes."""
    text = RESIDUAL.replace("ZEROS", ", ".join(["0"] * 64))
    source = model_of(text.replace("Add(c, sf)", f"Add({operands})"))
    made = optimized(source)
    kinds = kinds_of(made)
    assert kinds.count("int8_conv") == 2
    assert not {"Conv", "Add", "Relu"} & set(kinds)
    assert kinds.count("Transpose") == 2
    steps = off(source, made, tmp_path, 0.2)
    assert steps.max() < 1.5
    assert (steps > 0.5).mean() < 2e-3


MOVED = """g (float[1, 32, 16, 16] x) => (float[1, 40] y)
<float xs = {0.03}, uint8 xz = {120}, int8[64, 32, 1, 1] w, float[64] w_scale,
 int8[64] wz = {ZEROS}, float cs = {0.05}, uint8 cz = {0}, int8[64, 64, 3, 3] v,
 float[64] v_scale, float ds = {0.5}, int64[2] shape = {1, -1}, int8[40, 256] u, float us = {0.02},
 int8 uz = {0}, float ys = {7}, uint8 yz = {128}> {
  xq = QuantizeLinear(x, xs, xz)
  xf = DequantizeLinear(xq, xs, xz)
  wf = DequantizeLinear<axis = 0>(w, w_scale, wz)
  c = Conv(xf, wf)
  r = Relu(c)
  rq = QuantizeLinear(r, cs, cz)
  rf = DequantizeLinear(rq, cs, cz)
  p = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(rf)
  vf = DequantizeLinear<axis = 0>(v, v_scale, wz)
  d = Conv<kernel_shape = [3, 3], strides = [4, 4], pads = [1, 1, 1, 1]>(p, vf)
  dq = QuantizeLinear(d, ds, yz)
  df = DequantizeLinear(dq, ds, yz)
  f = Reshape(df, shape)
  uf = DequantizeLinear(u, us, uz)
  g = Gemm<transB = 1>(f, uf)
  gq = QuantizeLinear(g, ys, yz)
  y = DequantizeLinear(gq, ys, yz)
}"""


def test_what_is_moved_without_being_quantized_again_stays_in_bytes(tmp_path: Path) -> None:
    """NNCF and ModelOpt write no QuantizeLinear behind a MaxPool or a Reshape."""
    source = model_of(MOVED.replace("ZEROS", ", ".join(["0"] * 64)))
    made = optimized(source)
    kinds = kinds_of(made)
    assert kinds.count("int8_conv") == 2
    assert kinds.count("max_pool") == 1
    assert kinds.count("int8_product") == 1
    assert kinds.count("DequantizeLinear") == 1
    assert not {"Conv", "Gemm", "MaxPool"} & set(kinds)
    assert off(source, made, tmp_path, 7).max() == 0


MEAN = """g (float[1, 32, 14, 14] x) => (float[1, 32, 1, 1] y, float[1, 32, 14, 14] u)
<float xs = {0.03}, uint8 z = {128}, float s = {0.02}> {
  xq = QuantizeLinear(x, xs, z)
  xf = DequantizeLinear(xq, xs, z)
  y = GlobalAveragePool(xf)
  g = Sigmoid(y)
  m = Mul(xf, g)
  mq = QuantizeLinear(m, s, z)
  u = DequantizeLinear(mq, s, z)
}"""


def test_images_of_bytes_without_a_kernel_give_a_reason() -> None:
    misses = optimized(model_of(MEAN)).report.misses
    reasons = {(miss.node.split()[0], miss.reason) for miss in misses}
    assert ("GlobalAveragePool", "its result is not quantized to one constant grid") in reasons
    assert ("Mul", "an operand is no uint8 of one constant grid") in reasons


BESIDE = """g (float[1, 32, 14, 14] x) => (float[1, 32, 14, 14] y)
<float xs = {0.03}, uint8 xz = {120}, int8[32, 32, 1, 1] w, float[32] w_scale,
 int8[32] wz = {ZEROS}, int8[32, 32, 3, 3] v, float[32] v_scale, float cs = {0.3},
 float rs = {0.1}, uint8 rz = {0},
 float ds = {1.5}, float ys = {1}, uint8 mz = {128}> {
  xq = QuantizeLinear(x, xs, xz)
  xf = DequantizeLinear(xq, xs, xz)
  wf = DequantizeLinear<axis = 0>(w, w_scale, wz)
  c = Conv(xf, wf)
  cq = QuantizeLinear(c, cs, mz)
  cf = DequantizeLinear(cq, cs, mz)
  r = Relu(cf)
  rq = QuantizeLinear(r, rs, rz)
  rf = DequantizeLinear(rq, rs, rz)
  vf = DequantizeLinear<axis = 0>(v, v_scale, wz)
  d = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(rf, vf)
  dq = QuantizeLinear(d, ds, mz)
  df = DequantizeLinear(dq, ds, mz)
  b = Add(df, r)
  s = Relu(b)
  sq = QuantizeLinear(s, ys, rz)
  y = DequantizeLinear(sq, ys, rz)
}"""


def test_a_residual_in_float32_beside_the_bytes_of_the_same_value(tmp_path: Path) -> None:
    """neural-compressor quantizes what convolutions read, and adds float32."""
    source = model_of(BESIDE.replace("ZEROS", ", ".join(["0"] * 32)))
    made = optimized(source)
    kinds = kinds_of(made)
    assert kinds.count("int8_conv") == 2
    assert not {"Conv", "Add", "Relu"} & set(kinds)
    assert off(source, made, tmp_path, 1).max() == 0
