"""Convolutions over one dimension become the same over two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ortkit
from ortkit.kernels.cpu import has_bf16, native_level
from ortkit.precision import cpu, paying
from ortkit.precision.lines import widen_lines
from tests.precision.helpers import floats, model_of, off_by, run


@pytest.mark.parametrize(
    "attributes",
    [
        "",
        "kernel_shape = [3], pads = [1, 1]",
        "kernel_shape = [3], strides = [2], pads = [2, 0], dilations = [2]",
    ],
)
def test_the_same_is_computed(attributes: str) -> None:
    head = f"Conv<{attributes}>" if attributes else "Conv"
    model = model_of(
        f"g (float[n, 5, l] x) => (float[n, 7, k] y) {{ y = {head}(x, w, b) }}",
        w=floats(7, 5, 3), b=floats(7),
    )  # fmt: skip
    x = floats(2, 5, 20, seed=3)
    (wanted,) = run(model, x=x)
    assert widen_lines(model) == 1
    assert [node.op_type for node in model.graph] == ["Unsqueeze", "Conv", "Squeeze"]
    (found,) = run(model, x=x)
    assert found.shape == wanted.shape
    assert off_by(wanted, found) < 1e-6


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("g (float[n, 5, l] x) => (float[n, 5, k] y) { y = Conv<group = 5>(x, w) }", (5, 1, 3)),
        (
            'g (float[n, 5, l] x) => (float[n, 7, k] y) { y = Conv<auto_pad = "VALID">(x, w) }',
            (7, 5, 3),
        ),
        ("g (float[n, 5, h, v] x) => (float[n, 7, j, k] y) { y = Conv(x, w) }", (7, 5, 3, 3)),
    ],
)
def test_others_stay(text: str, shape: tuple[int, ...]) -> None:
    model = model_of(text, w=floats(*shape))
    assert widen_lines(model) == 0
    assert [node.op_type for node in model.graph] == ["Conv"]


@pytest.mark.skipif(not has_bf16(native_level()), reason="no products of bfloat16")
def test_they_become_kernels_in_bfloat16(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu, "time_whole", lambda *_: paying.WholeTime(2.0, 1.0, False))
    text = """g (float[n, 32, 400] x) => (float[n, 48, 200] y) {
      h = Conv<kernel_shape = [3], pads = [1, 1]>(x, w, b)  a = Gelu(h)
      y = Conv<kernel_shape = [3], pads = [1, 1], strides = [2]>(a, u, b)
    }"""
    weights = {"w": floats(48, 32, 3, scale=0.1), "u": floats(48, 48, 3, seed=1, scale=0.1)}
    model = model_of(text, **weights, b=floats(48, seed=2))
    found = ortkit.optimize(model, ortkit.OptimizeOptions(precision="bf16"))
    assert found.report.verification is not None
    assert found.report.verification.verdict == "yes"
    assert found.report.precision is not None
    assert found.report.precision.lowered == 2
    assert "Conv" not in found.report.after.ops
    path = tmp_path / "m.onnx"
    found.save(path)
    x = floats(2, 32, 400, seed=4)
    (wanted,) = run(model_of(text, **weights, b=floats(48, seed=2)), x=x)
    assert 0 < off_by(wanted, np.asarray(ortkit.Session(path).run({"x": x})["y"])) < 0.02
