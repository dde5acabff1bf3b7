"""Models whose products of bytes ONNX Runtime computes exactly, whatever processor runs a test.

Without VNNI its sums of uint8 by int8 saturate. Kernels of ortkit never do.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ortkit.verify.lowered.exact_products import make_products_exact, with_exact_products


def exact(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of the same function, with functions inlined where a product saturates."""
    return ir.to_proto(with_exact_products(ir.from_proto(model)))


def exact_in_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the same with the bodies of functions as they are, for a model with kernels."""
    made = ir.from_proto(model)
    make_products_exact(made)
    return ir.to_proto(made)
