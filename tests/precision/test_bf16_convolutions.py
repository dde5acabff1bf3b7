"""Convolutions in bfloat16 on CPUs: what they compute, which have kernels, what lies between."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import ortkit
from ortkit.graph.shapes.infer import Shapes
from ortkit.precision import lowering, whole_model
from ortkit.precision.building import Builder
from ortkit.precision.convolutions import convolution_refusal
from ortkit.precision.forms import RoundedBf16
from ortkit.precision.insert import lower_products
from ortkit.targets.cpu import has_bf16, native_level
from tests.precision.helpers import floats, model_of, off_by, products_of, run

needs_bf16 = pytest.mark.skipif(
    not has_bf16(native_level()), reason="the processor has no products of bfloat16"
)
RESIDUAL = """g (float[n, 32, 12, 14] x) => (float[n, 32, 1, 1] y) {
  a = Conv<pads = [1, 1, 1, 1]>(x, k, b)  r = Relu(a)
  c = Conv(r, p, b)  d = Relu(c)  e = Conv<pads = [1, 1, 1, 1]>(d, k, b)
  s = Add(e, r)  t = Relu(s)
  f = Conv<strides = [2, 2]>(t, p)  h = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(t, k, b)
  u = Add(h, f)  v = Relu(u)  y = GlobalAveragePool(v)
}"""


@pytest.fixture(autouse=True)
def always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """No outcome of a test hangs on the time of the machine."""
    monkeypatch.setattr(lowering, "time_whole", lambda *_: whole_model.WholeTime(2.0, 1.0, False))


def net(text: str = RESIDUAL) -> ir.Model:
    weights = {
        "k": floats(32, 32, 3, 3, seed=1, scale=(9 * 32) ** -0.5),
        "p": floats(32, 32, 1, 1, seed=2, scale=32**-0.5),
        "dw": floats(32, 1, 3, 3, seed=3, scale=9**-0.5),
        "b": floats(32, seed=4),
        "tall": floats(32, 32, 3, 1, seed=7, scale=96**-0.5),
        "few": floats(2, 32, 1, 1, seed=6, scale=32**-0.5),
    }
    return model_of(text, **{name: weight for name, weight in weights.items() if name in text})


def lowered(model: ir.Model) -> ir.Model:
    """Lower all convolutions of a model in place."""
    forms = [
        RoundedBf16(product)
        for product in products_of(model)
        if "group" not in product.node.attributes
    ]
    lower_products(model, Builder(model), list(forms))
    return model


def small(array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize(
    "text",
    [
        "y = Conv(x, w)",
        "y = Conv<pads = [1, 0, 1, 1], strides = [2, 1]>(x, w, b)",
        'a = Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>(x, w, b)  y = Relu(a)',
        "a = Conv<dilations = [2, 1]>(x, w, b)  y = Clip(a, low, high)",
    ],
)
def test_both_factors_are_rounded(text: str) -> None:
    x, w = floats(2, 5, 9, 11), floats(7, 5, 3, 2, seed=1)
    body = f"g (float[2, 5, 9, 11] x) => (float[2, 7, h, v] y) {{ {text} }}"
    more = {"b": floats(7), "low": np.array(-0.5, np.float32), "high": np.array(1, np.float32)}
    model = lowered(model_of(body, w=w, **more))
    assert "bf16" in str([initializer.name for initializer in model.graph.initializers.values()])
    (wanted,) = run(model_of(body, w=small(w), **more), x=small(x))
    (found,) = run(model, x=x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    (original,) = run(model_of(body, w=w, **more), x=x)
    assert off_by(original, found) > 1e-4


def test_what_is_added_is_rounded_too() -> None:
    """Once for all: what a convolution rounds anyway, and the later one of two results."""
    model = lowered(net())
    adds = [node for node in model.graph if node.op_type == "Add"]
    sides = [
        [None if (made := value.producer()) is None else made.op_type for value in node.inputs]
        for node in adds
    ]
    assert sides == [["Conv", "Cast"], ["Cast", "Conv"]]
    rounding = [
        node
        for node in model.graph
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.BFLOAT16
    ]
    # x, r, d, t, and one of f and h.
    assert len(rounding) == 5


def test_what_others_read_stays_in_float32() -> None:
    text = "g (float[n, 32, 4, 4] x) => (y, z) { a = Conv(x, p)  y = Add(a, q)  z = Exp(q) }"
    text = text.replace("{ a", "{ q = Tanh(x)  a")
    model = lowered(net(text))
    (add,) = [node for node in model.graph if node.op_type == "Add"]
    assert [value.producer().op_type for value in add.inputs] == ["Conv", "Tanh"]


# ---- which have kernels
@pytest.mark.parametrize(
    ("image", "conv", "weight", "reason"),
    [
        ("n, 32, 9, 9", "<group = 32>", (32, 1, 3, 3), "it has groups"),
        ("n, 32, 9", "", (32, 32, 3), "not over two dimensions"),
        ("n, 32, 9, 9, 9", "", (32, 32, 1, 1, 1), "not over two dimensions"),
        ("n, 32, h, 9", "", (32, 32, 3, 3), "the size of its images is not known"),
        ("n, 32, 1, 1", "", (32, 32, 1, 1), "over single pixels"),
        ("n, 3, 9, 9", "", (32, 3, 2, 2), "only 12 numbers"),
        ("n, 9000, 9, 9", "<strides = [2, 2]>", (2, 9000, 1, 1), "that have to be copied"),
        ("n, 32, 9, 9", "<pads = [1, 1, 1, 1]>", (32, 32, 3, 3), ""),
        ("2, 3, 9, 9", '<auto_pad = "SAME_LOWER">', (32, 3, 7, 7), ""),
    ],
)
def test_which_convolutions_have_a_kernel(
    image: str, conv: str, weight: tuple[int, ...], reason: str
) -> None:
    text = f"g (float[{image}] x) => (y) {{ y = Conv{conv}(x, w) }}"
    model = model_of(text, w=floats(*weight))
    (product,) = products_of(model)
    found = convolution_refusal(product, Shapes.infer(model), "x86-64-v4-amx")
    assert reason in found
    assert bool(reason) == bool(found)


# ---- whole models
def optimized(model: ir.Model) -> ortkit.Optimized:
    found = ortkit.optimize(model, ortkit.OptimizeOptions(precision="bf16"))
    assert found.report.verification is not None
    assert found.report.verification.verdict == "yes"
    assert found.report.precision is not None
    return found


@cache
def whole_net() -> ortkit.Optimized:
    """Return the residual net in bfloat16, which tests only read."""
    return optimized(net())


def fused(found: ortkit.Optimized) -> Counter[str]:
    return Counter(region.kind for region in found.report.regions if region.emitted_as)


@pytest.mark.sampled(1)
@needs_bf16
@pytest.mark.parametrize("batch", [1, 3])
def test_a_net_stays_in_bfloat16(batch: int, tmp_path: Path) -> None:
    found = whole_net()
    precision = found.report.precision
    assert precision is not None
    assert precision.lowered == 5
    assert fused(found)["bf16_conv"] == 5
    assert {"Conv", "Add", "Relu"}.isdisjoint(found.report.after.ops)
    # Only the input and the end change type and layout.
    assert found.report.after.ops["Transpose"] <= 2
    fused_kinds = [
        node.outputs[0].dtype for node in found.model.graph if "bf16_conv" in node.op_type
    ]
    assert Counter(fused_kinds) == {ir.DataType.BFLOAT16: 4, ir.DataType.FLOAT: 1}
    path = tmp_path / "m.onnx"
    found.save(path)
    x = floats(batch, 32, 12, 14, seed=5)
    (wanted,) = run(net(), x=x)
    got = ortkit.Session(path).run({"x": x})["y"]
    assert 0 < off_by(wanted, got) < 0.02
    # Without the library its functions compute the same.
    (plain,) = run(found.model, x=x)
    assert off_by(plain, got) < 2e-3


@pytest.mark.sampled(1)
@needs_bf16
@pytest.mark.parametrize("activation", ["c = Relu(a)", "s = Sigmoid(a)  c = Mul(a, s)"])
def test_depthwise_convolutions_have_their_ends_in_bfloat16(
    activation: str, tmp_path: Path
) -> None:
    text = """g (float[n, 32, 12, 14] x) => (float[n, 32, 12, 14] y) {
      a = Conv(x, p, b)  ACTIVATION  d = Conv<group = 32, pads = [1, 1, 1, 1]>(c, dw, b)
      e = Relu(d)  y = Conv(e, p, b)
    }""".replace("ACTIVATION", activation)
    found = optimized(net(text))
    (filtered,) = [node for node in found.model.graph if "depthwise_conv" in node.op_type]
    ends = [filtered.inputs[0], filtered.outputs[0]]
    assert [value.dtype for value in ends] == [ir.DataType.BFLOAT16] * 2
    path = tmp_path / "m.onnx"
    found.save(path)
    x = floats(2, 32, 12, 14, seed=5)
    (wanted,) = run(net(text), x=x)
    assert 0 < off_by(wanted, ortkit.Session(path).run({"x": x})["y"]) < 0.02


def test_what_others_read_is_filtered_in_float32() -> None:
    text = """g (float[n, 32, 4, 4] x) => (y, a, d) {
      a = Conv(x, p, b)  y = Conv<group = 32, pads = [1, 1, 1, 1]>(a, dw, b)
      t = Tanh(x)  d = Conv<group = 32, pads = [1, 1, 1, 1]>(t, dw, b)
    }"""
    model = lowered(net(text))
    sources = [
        node.inputs[0].producer().op_type for node in model.graph if "group" in node.attributes
    ]
    assert sources == ["Conv", "Tanh"]


@pytest.mark.sampled(1)
@needs_bf16
@pytest.mark.parametrize("ceil", [0, 1])
def test_poolings_between_convolutions_stay_in_bfloat16(ceil: int, tmp_path: Path) -> None:
    text = f"""g (float[n, 32, 12, 14] x) => (float[n, 32, v, w] y) {{
      a = Conv(x, p, b)  c = Relu(a)
      d = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = {ceil}>(c)  y = Conv(d, p)
    }}"""
    found = optimized(net(text))
    kinds = fused(found)
    kinds.pop("cast", None)
    assert kinds == {"bf16_conv": 2, "max_pool": 1}
    path = tmp_path / "m.onnx"
    found.save(path)
    x = floats(2, 32, 12, 14, seed=5)
    (wanted,) = run(net(text), x=x)
    assert 0 < off_by(wanted, ortkit.Session(path).run({"x": x})["y"]) < 0.02


@pytest.mark.parametrize(
    "end", ["y = Conv(d, p)  z = Tanh(d)", "y = Tanh(d)  z = Tanh(c)"], ids=["both", "neither"]
)
def test_poolings_that_others_read_stay_in_float32(end: str) -> None:
    text = f"""g (float[n, 32, 12, 14] x) => (y, z) {{
      a = Conv(x, p, b)  c = Relu(a)  d = MaxPool<kernel_shape = [3, 3]>(c)  {end}
    }}"""
    (pool,) = [node for node in lowered(net(text)).graph if node.op_type == "MaxPool"]
    assert pool.inputs[0].producer().op_type == "Relu"


@needs_bf16
def test_poolings_that_give_places_stay_in_float32() -> None:
    text = """g (float[1, 32, 12, 14] x) => (float[1, 32, v, w] y, int64[1, 32, s, t] i) {
      a = Conv(x, p, b)  c = Relu(a)  d, i = MaxPool<kernel_shape = [3, 3]>(c)  y = Conv(d, p)
    }"""
    (pool,) = [node for node in lowered(net(text)).graph if node.op_type == "MaxPool"]
    assert pool.inputs[0].producer().op_type == "Relu"
    assert optimized(net(text)).report.after.ops["MaxPool"] == 1


@needs_bf16
def test_gates_are_taken_in(tmp_path: Path) -> None:
    text = """g (float[n, 32, 12, 14] x) => (float[n, 32, 12, 14] y) {
      a = Conv(x, p, b)  c = Relu(a)  d = Conv<group = 32, pads = [1, 1, 1, 1]>(c, dw, b)
      e = GlobalAveragePool(d)  f = Conv(e, p, b)  h = Relu(f)  i = Conv(h, p, b)  j = Sigmoid(i)
      m = Mul(d, j)  o = Conv(m, p, b)  y = Add(o, x)
    }"""
    found = optimized(net(text))
    kinds = fused(found)
    kinds.pop("cast", None)
    assert kinds == {"bf16_conv": 2, "depthwise_conv": 1, "squeeze_excite": 1}
    assert "Mul" not in found.report.after.ops
    path = tmp_path / "m.onnx"
    found.save(path)
    x = floats(3, 32, 12, 14, seed=5)
    (wanted,) = run(net(text), x=x)
    assert 0 < off_by(wanted, ortkit.Session(path).run({"x": x})["y"]) < 0.02


@needs_bf16
def test_what_has_no_kernel_stays_with_the_reason(tmp_path: Path) -> None:
    text = RESIDUAL.replace("(d, k, b)", "(d, dw, b)").replace(
        "e = Conv<", "e = Conv<group = 32, "
    )
    found = optimized(net(text))
    precision = found.report.precision
    assert precision is not None
    assert precision.lowered == 4
    assert fused(found)["bf16_conv"] == 4
    assert any("groups" in miss.reason for miss in found.report.misses)
    path = tmp_path / "m.onnx"
    found.save(path)
    x = floats(2, 32, 12, 14, seed=5)
    (wanted,) = run(net(text), x=x)
    assert off_by(wanted, ortkit.Session(path).run({"x": x})["y"]) < 0.02


@needs_bf16
def test_what_no_kernel_computes_goes_back_to_float32() -> None:
    """The layout of a convolution that stands alone is not worth a change."""
    text = """g (float[1, 32, 6, 6] x) => (float[1, 2, v, w] y) {
      a = Tanh(x)  c = MaxPool<kernel_shape = [2, 2]>(a)  d = Conv(c, few)
      y = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(d)
    }"""
    found = optimized(net(text))
    precision = found.report.precision
    assert precision is not None
    assert precision.lowered == 0
    (node,) = precision.nodes
    assert "no kernel of ours" in node.reason
    assert "Cast" not in found.report.after.ops
    assert found.report.after.ops["Conv"] == 1


@pytest.mark.sampled(1)
@needs_bf16
@pytest.mark.parametrize("is_faster", [False, True])
def test_what_is_no_faster_stays_in_float32(
    is_faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = whole_model.WholeTime(2.0, 1.9, is_slower=False, is_faster=is_faster)
    monkeypatch.setattr(lowering, "time_whole", lambda *_: time)
    found = optimized(net())
    precision = found.report.precision
    assert precision is not None
    assert (precision.lowered > 0) == is_faster
    assert ("nothing is lowered: 1.9 ms instead of 2 ms" in precision.notes) == (not is_faster)


@needs_bf16
def test_results_that_are_read_both_ways(tmp_path: Path) -> None:
    text = """g (float[n, 32, 12, 14] x) => (float[n, 32, 12, 14] y, float[n, 32, 12, 14] z) {
      a = Conv(x, p, b)  y = Relu(a)  c = Conv<pads = [1, 0, 1, 0]>(y, tall)  z = Relu(c)
    }"""
    found = optimized(net(text))
    assert fused(found)["bf16_conv"] == 2
    path = tmp_path / "m.onnx"
    found.save(path)
    x = floats(2, 32, 12, 14, seed=5)
    wanted = run(net(text), x=x)
    got = ortkit.Session(path).run({"x": x})
    for one, name in zip(wanted, "yz", strict=True):
        assert 0 < off_by(one, got[name]) < 0.02


@needs_bf16
def test_convolutions_go_back_to_float32_within_the_budget() -> None:
    full = whole_net().report.precision
    assert full is not None
    budget = 0.7 * (full.error or 0)
    found = ortkit.optimize(net(), ortkit.OptimizeOptions(precision="bf16", max_error=budget))
    result = found.report.precision
    assert result is not None
    assert 0 < result.lowered < 5
    assert (result.error or 1) <= budget
