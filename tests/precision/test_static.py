"""Convolutions on 8-bit integers: what ONNX Runtime makes of them, and what its own flow gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import models
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.precision.building import Builder
from ortkit.precision.calibrate import find_ranges
from ortkit.precision.static import Grid, Range, StaticInt8, lower_convolutions
from ortkit.verify.exchange import write_feeds
from tests.precision.helpers import checked, floats, model_of, off_by, products_of, run

BLOCK = """g (float[1, 4, 8, 8] x) => (float[1, 8, 4, 4] y) {
  c = Conv<pads = [1, 1, 1, 1]>(x, w, b)  r = Relu(c)
  d = Conv<pads = [1, 1, 1, 1]>(r, w)     s = Add(d, r)  t = Relu(s)
  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(t)
  y = Conv(p, v)
}"""


def block() -> ir.Model:
    return model_of(
        BLOCK, w=floats(4, 4, 3, 3, scale=0.2), b=floats(4), v=floats(8, 4, 1, 1, scale=0.5)
    )


def calibrated(
    model: ir.Model, feeds: Mapping[str, np.ndarray], folder: Path, method: str = "minmax"
) -> Mapping[str, Range]:
    path = save_model(model, folder / "model.onnx").model
    write_feeds(folder / "feeds", feeds)
    operators = sorted({node.op_type for node in model.graph})
    return find_ranges(path, [folder / "feeds"], [method], operators, folder / "found")[method]


def lower(model: ir.Model, ranges: Mapping[str, Range], skip: tuple[str, ...] = ()) -> None:
    forms = [
        StaticInt8(product, ranges, "minmax")
        for product in products_of(model)
        if product.kind == "convolution" and product.key not in skip
    ]
    lower_convolutions(model, Builder(model), forms, ranges)


def deployed(model: ir.Model, path: Path) -> Counter[str]:
    """Return the operators that ONNX Runtime runs."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(
        checked(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_channels_of_hardly_any_weight_keep_their_biases(tmp_path: Path) -> None:
    weight = floats(4, 4, 3, 3) * np.float32([0, 1e-9, 1e-6, 1]).reshape(4, 1, 1, 1)
    bias = np.float32([0.5, -0.7, 0.9, 0])
    ends = "float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y"
    body = f"g ({ends}) {{ y = Conv<pads = [1, 1, 1, 1]>(x, w, b) }}"
    model = model_of(body, w=weight, b=bias)
    x = floats(1, 4, 8, 8, seed=1)
    (wanted,) = run(model, x=x)
    ranges = calibrated(model, {"x": x}, tmp_path)
    lower(model, ranges)
    (found,) = run(model, x=x)
    step = Grid.of(ranges["y"]).scale
    assert np.abs(found - wanted)[0, :3].max() <= step * 0.51
    assert off_by(wanted, found) < 0.03


def test_an_input_that_is_an_output_too_stays_as_it_is() -> None:
    ends = "float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] x"
    model = model_of(
        f"g ({ends}) {{ y = Conv<pads = [1, 1, 1, 1]>(x, w, b) }}",
        w=floats(4, 4, 3, 3), b=floats(4),
    )  # fmt: skip
    x = floats(1, 4, 8, 8, seed=1)
    lower(model, {"x": (-4.0, 4.0), "y": (-20.0, 20.0)})
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert [value.name for value in model.graph.outputs] == ["y", "x"]
    np.testing.assert_array_equal(run(model, x=x)[1], x)


def test_a_block_stays_in_integers_from_end_to_end(tmp_path: Path) -> None:
    x = floats(1, 4, 8, 8, seed=1)
    model = block()
    (wanted,) = run(model, x=x)
    lower(model, calibrated(model, {"x": x}, tmp_path))
    (found,) = run(model, x=x)
    assert 0 < off_by(wanted, found) < 0.03
    ops = deployed(model, tmp_path / "deployed.onnx")
    assert ops["QLinearConv"] == 3
    assert ops["QLinearAdd"] == 1
    assert (ops["QuantizeLinear"], ops["DequantizeLinear"]) == (1, 1)
    assert not ops.keys() & {"Relu", "Conv", "Add", "FusedConv"}


def test_what_is_not_chosen_stays_in_float32(tmp_path: Path) -> None:
    x = floats(1, 4, 8, 8, seed=1)
    model = block()
    (wanted,) = run(model, x=x)
    lower(model, calibrated(model, {"x": x}, tmp_path), skip=("d",))
    (found,) = run(model, x=x)
    assert 0 < off_by(wanted, found) < 0.03
    assert deployed(model, tmp_path / "deployed.onnx")["QLinearConv"] == 2


def test_interfaces_keep_names_and_types(tmp_path: Path) -> None:
    model = block()
    lower(model, calibrated(model, {"x": floats(1, 4, 8, 8)}, tmp_path))
    proto = checked(model)
    assert [value.name for value in proto.graph.input] == ["x"]
    assert [value.name for value in proto.graph.output] == ["y"]
    assert proto.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_values_that_others_read_are_rounded_for_all(tmp_path: Path) -> None:
    model = model_of(
        """g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] r) {
          c = Conv(x, w)  r = Relu(c)  e = Exp(r)  d = Conv(r, w)  y = Mul(d, e)
        }""",
        w=floats(4, 4, 1, 1, scale=0.5),
    )
    x = floats(1, 4, 8, 8, seed=2)
    wanted = run(model, x=x)
    lower(model, calibrated(model, {"x": x}, tmp_path))
    found = run(model, x=x)
    assert all(0 < off_by(a, b) < 0.03 for a, b in zip(wanted, found, strict=True))
    assert deployed(model, tmp_path / "deployed.onnx")["QLinearConv"] == 2


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
def test_as_exact_as_onnx_runtime_s_own_flow(method: str, tmp_path: Path) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_static

    model = open_model(models.build("resnet50"))
    feeds = models.feeds(ir.to_proto(model))
    wanted = run(model, **feeds)
    ranges = calibrated(model, feeds, tmp_path, method)
    kinds = {
        "minmax": CalibrationMethod.MinMax, "percentile": CalibrationMethod.Percentile,
        "entropy": CalibrationMethod.Entropy,
    }  # fmt: skip

    class Reader:
        given = [feeds]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.given.pop() if self.given else None

    quantize_static(
        tmp_path / "model.onnx", tmp_path / "own.onnx", Reader(), per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        calibrate_method=kinds[method],
    )  # fmt: skip
    (own,) = run(open_model(tmp_path / "own.onnx"), **feeds)
    lower(model, ranges)
    (found,) = run(model, **feeds)
    assert off_by(wanted[0], found) < 1.1 * off_by(wanted[0], own) + 1e-3


def test_a_grid_holds_zero() -> None:
    for limits in ((1.0, 5.0), (-5.0, -1.0), (-1.0, 3.0), (0.0, 0.0)):
        grid = Grid.of(limits)
        zero, scale = float(grid.zero), float(grid.scale)
        low, high = -zero * scale, (255.0 - zero) * scale
        assert low <= min(limits[0], 0) + scale / 2 + 1e-6
        assert high >= max(limits[1], 0) - scale / 2 - 1e-6
    assert Grid.of((0.0, 0.0)).scale == 1.0
