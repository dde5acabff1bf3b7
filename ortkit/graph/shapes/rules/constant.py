"""What is known of a constant tensor."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.graph.shapes.rules.call import CONTENTS_LIMIT, INTEGERS, WIDE_FLOATS, Fact, is_small

#: Floats matter in a few places only: scales of Resize, the numbers of a Range.
_FLOATS_LIMIT = 8


def constant_fact(tensor: ir.TensorProtocol) -> Fact:
    """Return what is known of a constant; only small ones are read."""
    shape = tuple(size for size in tensor.shape.dims if isinstance(size, int))
    dtype = tensor.dtype
    if dtype in INTEGERS and is_small(shape, CONTENTS_LIMIT):
        # The 4-bit types are not numpy's own; the widest unsigned does not fit int64.
        widest = np.uint64 if dtype == ir.DataType.UINT64 else np.int64
        numbers = tensor.numpy().reshape(-1).astype(widest).tolist()
        return Fact(dtype, shape, tuple(numbers))
    if dtype in WIDE_FLOATS and is_small(shape, _FLOATS_LIMIT):
        floats = tensor.numpy().reshape(-1).astype(np.float64).tolist()
        return Fact(dtype, shape, tuple(floats))
    return Fact(dtype, shape)
