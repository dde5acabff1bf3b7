"""Small models for sessions on CUDA, as ONNX text, and what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser

Array = np.ndarray[Any, np.dtype[Any]]

#: y = tanh(x) + x; every step exact enough to be compared closely.
CHAIN = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x) => (float[n, 64] y) { a = Tanh(x)  y = Add(a, x) }
"""
#: The end of the Slice is read by the host.
SLICED = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x, int64[1] end) => (float[n, m] y)
<int64[1] start = {0}, int64[1] axis = {1}> { t = Tanh(x)  y = Slice(t, start, end, axis) }
"""
#: Shape arithmetic on the host between kernels on the device.
SHAPED = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x) => (float[n, 64] y)
<int64[1] flat = {-1}> { s = Shape(x)  f = Reshape(x, flat)  t = Tanh(f)  y = Reshape(t, s) }
"""
#: CUDA has no kernel for Det.
ON_CPU = """<ir_version: 10, opset_import: ["" : 20]>
g (float[64, 64] x) => (float[64, 64] y) { t = Tanh(x)  d = Det(t)  y = Add(t, d) }
"""
LOOP = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x) => (float[n, 64] y) <int64 trips = {3}, bool go = {1}> {
  y = Loop (trips, go, x) <body = b (int64 i, bool c, float[n, 64] v) => (bool c2, float[n, 64] w)
  { c2 = Identity(c)  w = Tanh(v) }>
}
"""
COUNTED = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n] x) => (int64[1, m] y) { t = Tanh(x)  y = NonZero(t) }
"""
BOOLEANS = """<ir_version: 10, opset_import: ["" : 20]>
g (bool[n] x) => (bool[n] y) { y = Not(x) }
"""
BFLOAT16 = """<ir_version: 10, opset_import: ["" : 20]>
g (bfloat16[n] x) => (bfloat16[n] y) { y = Add(x, x) }
"""
RANDOM = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x) => (float[n, 64] y) { r = RandomNormalLike(x)  y = Add(x, r) }
"""
TWO_OUTPUTS = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x) => (float[n, 64] y, float[n, 64] z) { y = Tanh(x)  z = Exp(y) }
"""
#: As many floats as asked for: more than a GPU has, if need be.
FILLED = """<ir_version: 10, opset_import: ["" : 20]>
g (float[1] x, int64[1] size) => (float[m] y) { y = Expand(x, size) }
"""


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def rows(count: int, seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    return random.standard_normal((count, 64)).astype(np.float32)


def chained(x: Array) -> Array:
    return np.tanh(x) + x


def close(found: Any, wanted: Array) -> None:
    """Compare to 1e-5 of values of about 1: float32 on both sides, without matrix products."""
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-5)
