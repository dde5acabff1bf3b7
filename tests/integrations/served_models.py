"""Small optimized models for servers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser

import ortkit

#: One kernel; rows are independent.
ROWS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 24] X) => (float[n, 24] Y) <float[24] B = {
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24
}> { s = Sub(X, B)  t = Tanh(s)  e = Exp(t)  Y = Mul(e, s) }
"""
#: Each row reads all others.
MIXED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 24] X) => (float[n, 24] Y) <int64[1] zero = {0}> {
  S = ReduceSum(X, zero)  Y = Add(X, S)
}
"""
#: Ids beyond the table end a run.
LOOKUP = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[n, k] I) => (float[n, k] Y) <float[4] T = {0, 1, 2, 3}> { Y = Gather(T, I) }
"""
TEXTS = """<ir_version: 8, opset_import: ["" : 17]>
g (string[n] X) => (string[n] Y) { Y = Identity(X) }
"""


def optimized(folder: Path) -> Path:
    """Write `model.opt.onnx` with a kernel library, made of `ROWS`."""
    made = ortkit.optimize(
        onnx.parser.parse_model(ROWS), ortkit.OptimizeOptions(level=3, verify=False)
    )
    assert made.library is not None
    made.save(folder / "model.opt.onnx")
    return folder / "model.opt.onnx"


def saved(text: str, path: Path) -> Path:
    """Write a model as it stands."""
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def expected(x: np.ndarray) -> np.ndarray:
    """Return what `ROWS` computes."""
    s = x - np.arange(1, 25, dtype=np.float32)
    return np.exp(np.tanh(s)) * s
