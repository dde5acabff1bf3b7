"""A result that refuses an empty batch says so; rewritten shapes do not refuse it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from ortkit import OptimizeOptions, Session, optimize
from ortkit.verify.empty_batch import REMARK

ort = pytest.importorskip("onnxruntime")
ATTENTION = """<ir_version: 10, opset_import: ["": 20]>
g (float[B,4,S,16] q, float[B,4,S,16] k, float[B,4,S,16] v, float[B,1,S,S] mask)
  => (float[B,4,S,16] y) {
  scale = Constant<value_float = 0.25>()
  turned = Transpose<perm = [0,1,3,2]>(k)
  scores = MatMul(q, turned)
  scaled = Mul(scores, scale)
  masked = Add(scaled, mask)
  p = Softmax<axis = -1>(masked)
  y = MatMul(p, v)
}"""
AXES = """<ir_version: 10, opset_import: ["": 20]>
g (float[B,S] x) => (float[B,1,1,S] y, float[B,S] z)
  <int64[1] one = {1}, int64[1] two = {2}> {
  a = Unsqueeze(x, one)
  b = Unsqueeze(a, two)
  y = Neg(b)
  c = Squeeze(y, one)
  d = Squeeze(c, one)
  z = Abs(d)
}"""


@pytest.mark.parametrize(
    ("kernels", "batch", "size", "is_said"),
    [("off", "B", "S", True), ("auto", "B", "S", False), ("off", "2", "7", False)],
)
def test_refused_empty_batches_are_said(
    kernels: str, batch: str, size: str, is_said: bool, tmp_path: Path
) -> None:
    text = ATTENTION.replace("B", batch).replace("S,", f"{size},").replace("S]", f"{size}]")
    made = optimize(onnx.parser.parse_model(text), OptimizeOptions(kernels=kernels))
    assert made.report.verification is not None
    assert made.report.verification.verdict == "yes"
    assert (REMARK in made.report.verification.reason) == is_said
    made.save(tmp_path / "made.onnx")
    if batch != "B":
        return
    empty = dict.fromkeys("qkv", np.zeros((0, 4, 5, 16), np.float32))
    empty["mask"] = np.zeros((0, 1, 5, 5), np.float32)
    with Session(tmp_path / "made.onnx") as session:
        if is_said:
            with pytest.raises(Exception, match="must be greater than 0"):
                session.run(empty)
        else:
            assert session.run(empty)["y"].shape == (0, 4, 5, 16)


def test_what_the_original_refuses_is_not_said() -> None:
    text = """<ir_version: 10, opset_import: ["": 23]>
    g (float[B,4,S,16] q, float[B,4,S,16] k, float[B,4,S,16] v) => (float[B,4,S,16] y) {
      t = Attention(q, k, v)
      u = Identity(t)
      y = Neg(u)
    }"""
    made = optimize(onnx.parser.parse_model(text), OptimizeOptions(kernels="off"))
    assert made.report.verification is not None
    assert REMARK not in made.report.verification.reason


@pytest.mark.parametrize("level", [1, 2, 3])
def test_merged_axes_take_empty_rows(level: int, tmp_path: Path) -> None:
    made = optimize(onnx.parser.parse_model(AXES), OptimizeOptions(level=level, kernels="off"))
    made.save(tmp_path / "made.onnx")
    session = ort.InferenceSession(tmp_path / "made.onnx")
    y, z = session.run(None, {"x": np.zeros((0, 5), np.float32)})
    assert y.shape == (0, 1, 1, 5)
    assert z.shape == (0, 5)
