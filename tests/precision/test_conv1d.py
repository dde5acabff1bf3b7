"""Convolutions over one dimension become the same over two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ortkit
from ortkit.precision import lowering, whole_model
from ortkit.precision.conv1d import widen_lines
from ortkit.targets.cpu import has_bf16, native_level
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


CHAINS = {
    "activation": (
        "h = Conv(x, w)  a = Gelu(h)  y = Conv(a, u)", "Unsqueeze Conv Gelu Conv Squeeze"
    ),
    "residual sum": (
        "h = Conv(x, w)  a = Conv(h, u)  s = Add(h, a)  m = Mul(s, half)  y = Relu(m)",
        "Unsqueeze Conv Conv Add Mul Relu Squeeze",
    ),
    "read twice": (
        "h = Conv(x, w)  a = Relu(h)  z = Softmax(h)  b = Conv(a, u)  y = Sub(b, z)",
        "Unsqueeze Conv Squeeze Relu Softmax Conv Unsqueeze Sub Squeeze",
    ),
    "other operands": (
        "h = Conv(x, w)  m = ReduceMean(h, last)  s = Sub(h, m)  t = Mul(s, rows)  y = Conv(t, u)",
        "Unsqueeze Conv Squeeze ReduceMean Sub Mul Unsqueeze Conv Squeeze",
    ),
    "channels innermost": (
        "h = Conv(x, w)  r = Relu(h)  t = Transpose<perm = [0, 2, 1]>(r)  y = Add(t, columns)",
        "Unsqueeze Conv Relu Transpose Squeeze Add",
    ),
    "turned otherwise": (
        "h = Conv(x, w)  y = Transpose<perm = [1, 2, 0]>(h)", "Unsqueeze Conv Squeeze Transpose"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_what_lies_between_two_goes_before_the_squeeze(name: str) -> None:
    body, wanted = CHAINS[name]
    weights = {
        "w": floats(6, 4, 1), "u": floats(6, 6, 1, seed=1), "half": floats(1, seed=2),
        "rows": floats(6, 1, seed=3), "columns": floats(6, seed=4), "last": np.array([2]),
    }  # fmt: skip
    weights = {key: value for key, value in weights.items() if f" {key})" in body}
    model = model_of(f"g (float[2, 4, 9] x) => (float[i, j, k] y) {{ {body} }}", **weights)
    x = floats(2, 4, 9, seed=5)
    (before,) = run(model, x=x)
    widen_lines(model)
    assert [node.op_type for node in model.graph] == wanted.split()
    (after,) = run(model, x=x)
    assert after.shape == before.shape
    assert off_by(before, after) < 1e-6


@pytest.mark.skipif(not has_bf16(native_level()), reason="no products of bfloat16")
def test_they_become_kernels_in_bfloat16(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lowering, "time_whole", lambda *_: whole_model.WholeTime(2.0, 1.0, False))
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
