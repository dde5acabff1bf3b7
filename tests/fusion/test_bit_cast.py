"""BitCast in regions, on both targets: Schraudolph's exponential, which adds to a float's bits."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import ortkit
from ortkit import OptimizeOptions, optimize

#: Source: Schraudolph, "A Fast, Compact Approximation of the Exponential Function" (1999).
TEXT = """<ir_version: 11, opset_import: ["" : 26]>
g (float[512, 768] x) => (float[512, 768] y)
    <float scale = {12102203.0}, float bias = {1064866805.0}> {
  s = Mul(x, scale)
  t = Add(s, bias)
  i = Cast<to = 6>(t)
  e = BitCast<to = 1>(i)
  o = Softplus(e)
  y = Tanh(o)
}"""


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_region_holds_it(target: str) -> None:
    options = OptimizeOptions(target=target, verify=False)
    report = optimize(onnx.parser.parse_model(TEXT), options).report
    assert any("bit_cast" in region.kind and not region.reason for region in report.regions)


def test_its_kernel_computes_what_onnxruntime_does() -> None:
    model = onnx.parser.parse_model(TEXT)
    made = optimize(model, OptimizeOptions())
    assert "BitCast" not in {node.op_type for node in made.model.graph}
    assert made.report.verification is not None and made.report.verification.verdict == "yes"
    x = np.random.default_rng(0).uniform(-8, 2, (512, 768)).astype(np.float32)
    with ortkit.Session(model) as before, ortkit.Session(made) as after:
        np.testing.assert_allclose(after.run({"x": x})["y"], before.run({"x": x})["y"], rtol=1e-5)
