"""What the tests of tuning share: a cache of their own, and a model with a region."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest
from tuned_regions import WIDTH

MODEL = f"""<ir_version: 10, opset_import: ["" : 20]>
g (float[n, {WIDTH}] x, float[{WIDTH}, 8] w) => (float[n, 8] y)
<float[{WIDTH}] b = {{{", ".join(["0.5"] * WIDTH)}}}>
{{ a = Add(x, b)  t = Tanh(a)  s = Sigmoid(t)  c = Mul(a, s)  d = Sub(c, x)
   p = Softmax <axis = -1> (d)  y = MatMul(p, w) }}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ORTKIT_CACHE", str(folder))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path
