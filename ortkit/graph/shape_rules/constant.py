"""What is known of a constant tensor."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.graph.shape_rules.call import INTEGERS, WIDE_FLOATS, Fact, is_small


def constant_fact(tensor: ir.TensorProtocol) -> Fact:
    """Return what is known of a constant; only small ones are read."""
    shape = tuple(int(size) for size in tensor.shape.numpy())
    dtype = tensor.dtype
    if not is_small(shape) or not (dtype in INTEGERS or dtype in WIDE_FLOATS):
        return Fact(dtype, shape)
    array = tensor.numpy().reshape(-1)
    if dtype in INTEGERS:
        return Fact(dtype, shape, tuple(int(number) for number in array.astype(np.int64)))
    return Fact(dtype, shape, tuple(float(number) for number in array))
