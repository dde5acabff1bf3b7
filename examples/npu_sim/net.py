"""A small convolution net with residuals, and made-up numbers for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

NET = """<ir_version: 10, opset_import: ["" : 20]>
net (float[n, 3, 32, 32] x) => (float[n, 10] y)
{
  c0 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (x, w0, b0)
  r0 = Relu (c0)
  p0 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r0)
  c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (p0, w1, b1)
  r1 = Relu (c1)
  c2 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 4> (r1, w2)
  s = Add (c2, p0)
  r2 = Relu (s)
  a = GlobalAveragePool (r2)
  f = Flatten (a)
  g = Gemm <transB = 1> (f, w3, b3)
  y = Softmax (g)
}
"""
_SHAPES = {
    "w0": (32, 3, 3, 3), "b0": (32,), "w1": (32, 32, 3, 3), "b1": (32,), "w2": (32, 8, 3, 3),
    "w3": (10, 32), "b3": (10,),
}  # fmt: skip


def with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give the net its weights."""
    random = np.random.default_rng(0)
    for name, shape in _SHAPES.items():
        scale = np.sqrt(2 / np.prod(shape[1:], initial=1))
        array = (scale * random.standard_normal(shape)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def feeds_for(session: Any, rows: int = 2) -> dict[str, Any]:
    """Return float32 inputs for a session, `rows` for each size that is not fixed."""
    random = np.random.default_rng(1)
    return {
        item.name: random.standard_normal(
            [size if isinstance(size, int) else rows for size in item.shape], dtype=np.float32
        )
        for item in session.get_inputs()
    }
