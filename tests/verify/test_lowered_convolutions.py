"""Quantized convolutions: ranges that stand for an activation, and planted faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from lowered_forms import Arrays, judged, model

from ortkit.verify.verifier import Verifier

CHANNELS, PIXELS = 12, 10
RNG = np.random.default_rng(4)
B = RNG.standard_normal(CHANNELS).astype(np.float32)
IMAGE = RNG.standard_normal((3, CHANNELS, PIXELS, PIXELS)).astype(np.float32)
FILTERS = (RNG.standard_normal((CHANNELS, CHANNELS, 3, 3)) / 8).astype(np.float32)
SIZES = f"n, {CHANNELS}, {PIXELS}, {PIXELS}"
CONV = model(
    "c = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = Clip(c, low, high)",
    {"w": FILTERS, "b": B, "low": np.array(0, np.float32),
     "high": np.array(3, np.float32)},
    SIZES, SIZES,
)  # fmt: skip


def convolution(**wrong: np.ndarray) -> ir.Model:
    """Quantize a convolution: the ends of the range of its results stand for the Clip."""
    scale = (np.abs(FILTERS).max((1, 2, 3)) / 127).astype(np.float32)
    x_scale = np.array(3.5 / 127.5, np.float32)
    held = {
        "xs": x_scale, "xz": np.array(128, np.uint8),
        "q": np.round(FILTERS / scale[:, None, None, None]).astype(np.int8), "s": scale,
        "z": np.zeros(CHANNELS, np.int8), "ys": np.array(3 / 255, np.float32),
        "yz": np.array(0, np.uint8),
        "b": np.round(B / (x_scale * scale)).astype(np.int32),
    }  # fmt: skip
    nodes = (
        "a = QuantizeLinear(x, xs, xz)"
        "o = QLinearConv<pads = [1, 1, 1, 1]>(a, xs, xz, q, s, z, ys, yz, b)"
        "y = DequantizeLinear(o, ys, yz)"
    )
    return model(nodes, {**held, **wrong}, SIZES, SIZES)


GOOD = {
    value.name: value.const_value.numpy() for value in convolution().graph.initializers.values()
}
SECOND = np.arange(CHANNELS) == 2
CONVOLUTIONS: dict[str, tuple[Arrays, str]] = {
    "bias dropped": ({"b": np.zeros(CHANNELS, np.int32)}, "axis 1"),
    "a filter's scale": (
        {"s": np.where(SECOND, GOOD["s"] * 1.05, GOOD["s"]).astype(np.float32)},
        "index 2 of axis 1",
    ),
    "a filter's bias has the other sign": (
        {"b": np.where(SECOND, -GOOD["b"], GOOD["b"])},
        "index 2 of axis 1",
    ),
    "filters flipped": ({"q": GOOD["q"][..., ::-1].copy()}, ""),
    "bias of a neighbour": ({"b": np.roll(GOOD["b"], 1)}, ""),
}  # fmt: skip


def test_a_good_convolution_is_explained(tmp_path: Path) -> None:
    assert judged(tmp_path, CONV, convolution(), IMAGE) == {}


@pytest.mark.parametrize("fault", CONVOLUTIONS)
def test_faults_of_convolutions_are_not(fault: str, tmp_path: Path) -> None:
    wrong, place = CONVOLUTIONS[fault]
    found = judged(tmp_path, CONV, convolution(**wrong), IMAGE)
    assert list(found) == ["y"]
    assert place in found["y"].reason


def two(nodes: str, r_zero: int) -> ir.Model:
    """Quantize the results of the first of two convolutions, which is where its Relu is."""
    held = {"w": FILTERS, "b": B, "xs": np.array(4 / 255, np.float32),
            "xz": np.array(r_zero, np.uint8)}  # fmt: skip
    conv = "Conv<pads = [1, 1, 1, 1]>"
    return model(nodes.replace("Conv", conv), held, SIZES, SIZES)


@pytest.mark.parametrize(("r_zero", "verdict"), [(0, "yes"), (100, "no")])
def test_a_range_stands_for_the_relu_before_it(r_zero: int, verdict: str) -> None:
    original = two("c = Conv(x, w, b) r = Relu(c) y = Conv(r, w, b)", 0)
    candidate = two(
        "r = Conv(x, w, b) q = QuantizeLinear(r, xs, xz) d = DequantizeLinear(q, xs, xz)"
        "y = Conv(d, w, b)",
        r_zero,
    )
    with Verifier(original, samples=1) as verifier:
        found = verifier.check(candidate, stated=0.1)
        assert found.verdict == verdict, found.reason
        assert "2 inner values" in found.reason or verdict == "no"
        assert verifier.check(candidate).verdict == "no"
